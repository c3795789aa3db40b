"""Values that are more than text: names for `--model` and `--data`, of which nothing is imported or run, and others."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.choices import SAVED_MODEL, names_file_or_code
from gpubalance.system.applications import applications, refuse_unknown
from gpubalance.system.files import near
from gpubalance.text import clean


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
        remedy = "write file.py:function or package.module:function"
        raise UsageError(f"--data {clean(name)} names no function", remedy=remedy)
    return _checked("--data", name, "gives the samples")


def _checked(option: str, name: str, does: str) -> str:
    try:
        name.encode()  # a result's JSON must be able to hold it
    except UnicodeEncodeError:
        raise UsageError(f"{option}: its name is not UTF-8", remedy="give the file or module another") from None
    place, colon, function = name.rpartition(":")
    path = Path(place if colon else name)
    shown, called = clean(str(path)), f":{clean(function, 60)}" if colon else ""
    if path.suffix in (".py", SAVED_MODEL) and not path.is_file():
        called = called or (":FUNCTION" if path.suffix == ".py" else "")
        names = " or ".join(f"{option} {clean(one)}{called}" for one in near(path))
        remedy = f"did you mean {names}?" if names else f"give its path: {option} folder/file{path.suffix}{called}"
        raise UsageError(f"{option}: there is no file {shown}", remedy=remedy)
    text = _text_of(path) if path.suffix == ".py" else None
    # A name can be defined in many ways: here it only must occur.
    if text is not None and not (colon and re.search(rf"\b{re.escape(function)}\b|import \*", text)):
        remedy = f"name the one that {does}: {' or '.join(_named(option, shown, text))}"
        if colon:
            raise BadInput(f"{option}: {shown} has no function {called[1:]!r}", remedy=remedy)
        raise UsageError(f"{option} {shown} names a file, not a function in it", remedy=remedy)
    return name


def _named(option: str, file: str, text: str) -> list[str]:
    """Each function of the file that can be called without arguments and returns something."""
    bodies = re.findall(r"(?ms)^def ([A-Za-z]\w*)\((?:\w+ *=[^,)]*,? *)*\)(.*?)(?=^\S|\Z)", text)
    found = [name for name, body in bodies if re.search(r"\breturn\b|\.\.\.", body)]
    return [f"{option} {file}:{clean(one, 60)}" for one in found or ["FUNCTION"]]


def _text_of(path: Path) -> str | None:
    """The file's text; None if it can't be read, which the worker reports."""
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return None


def noise_scale(text: str) -> float:
    """Samples. Raises BadInput for a file without a noise scale."""
    with suppress(ValueError):
        return float(text.replace(",", "").replace("_", ""))
    from gpubalance.results.plan import Noise
    from gpubalance.results.records import read_record

    found = read_record(Path(text), Noise)
    if found.noise_scale is None:
        raise BadInput(
            f"{text} has no noise scale: {found.unknown}",
            remedy="train for longer with split.monitor(noise=…), or with a smaller every=, or leave --noise-scale out",
        )
    return found.noise_scale
