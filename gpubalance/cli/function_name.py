"""Checks the names for `--model` and `--data` as far as possible without TensorFlow: nothing is imported or run."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.choices import SAVED_MODEL, names_file_or_code
from gpubalance.system.applications import applications, refuse_unknown
from gpubalance.system.near import near
from gpubalance.text import clean

_WITHOUT_ARGUMENTS = re.compile(r"(?m)^def ([A-Za-z]\w*)\((?:\w+ *=[^,)]*,? *)*\)")  # but for those with a default


def model(name: str) -> str:
    """Returns the name. Raises UsageError for a file that does not exist, and for one without a function's name.

    Raises BadInput for a function that its file does not contain, and for a model that Keras does not have.
    """
    known = () if names_file_or_code(name) else applications()
    if known and not name.endswith(".py"):
        refuse_unknown(name, known)
    return _checked("--model", name, "builds the model")


def data(name: str) -> str:
    """Checks a name for `--data`, which must always name a function."""
    if not name.endswith(".py") and not all(name.rpartition(":")):
        raise UsageError(
            f"--data {clean(name)} names no function", remedy="write file.py:function or package.module:function"
        )
    return _checked("--data", name, "gives the samples")


def _checked(option: str, name: str, does: str) -> str:
    try:
        name.encode()  # a result's JSON must be able to hold it
    except UnicodeEncodeError:
        raise UsageError(f"{option}: its name is not UTF-8", remedy="give the file or module another") from None
    place, colon, function = name.rpartition(":")
    path = Path(place if colon else name)
    if path.suffix in (".py", SAVED_MODEL) and not path.is_file():
        function = f":{clean(function, 60)}" if colon else ":FUNCTION" if path.suffix == ".py" else ""
        raise UsageError(f"{option}: there is no file {clean(str(path))}", remedy=_file_remedy(option, path, function))
    text = _text_of(path) if path.suffix == ".py" else None
    # A name can be defined in many ways: here it only must occur.
    if text is not None and not (colon and re.search(rf"\b{re.escape(function)}\b|import \*", text)):
        found = re.findall(_WITHOUT_ARGUMENTS, text) or ["FUNCTION"]
        named = " or ".join(f"{option} {clean(str(path))}:{clean(one, 60)}" for one in found)
        remedy = f"name the one that {does}: {named}"
        if colon:
            raise BadInput(f"{option}: {clean(str(path))} has no function {clean(function, 60)!r}", remedy=remedy)
        raise UsageError(f"{option} {clean(name)} names a file, not a function in it", remedy=remedy)
    return name


def _file_remedy(option: str, path: Path, function: str) -> str:
    names = near(path)
    if names:
        return f"did you mean {' or '.join(f'{option} {clean(name)}{function}' for name in names)}?"
    return f"give the path of a file: {option} folder/{clean(path.name, 60)}{function}"


def _text_of(path: Path) -> str | None:
    """The file's text; None if it can't be read, which the worker reports."""
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return None
