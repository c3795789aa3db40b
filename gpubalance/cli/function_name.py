"""Checks the names for `--model` and `--data` as far as possible without TensorFlow: nothing is imported or run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer

from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.choices import SAVED_MODEL, names_file_or_code
from gpubalance.system.applications import applications, refuse_unknown
from gpubalance.system.near import near
from gpubalance.text import clean


def model(name: str | None) -> str | None:
    """Returns the name. Raises UsageError for a file that does not exist, and for one without a function's name.

    Raises BadInput for a function that its file does not contain, and for a model that Keras does not have.
    """
    found = _checked("--model", name, "builds the model")
    known = applications() if found and not names_file_or_code(found) else ()
    if found and known:
        refuse_unknown(found, known)
    return found


def models(names: list[str] | None) -> list[str] | None:
    """Checks each of several names like `model`."""
    for name in names or ():
        model(name)
    return names


def data(name: str | None) -> str | None:
    """Checks a name for `--data`, which must always name a function."""
    if name and not name.endswith(".py") and not all(name.rpartition(":")):
        raise UsageError(
            f"--data {clean(name)} names no function", remedy="write file.py:function or package.module:function"
        )
    return _checked("--data", name, "gives the samples")


def _checked(option: str, name: str | None, does: str) -> str | None:
    if name is None:
        return None
    try:
        name.encode()  # a result's JSON must be able to hold it
    except UnicodeEncodeError:
        raise typer.BadParameter("its name is not UTF-8: give the file or module another") from None
    place, colon, function = name.rpartition(":")
    path = Path(place if colon else name)
    if path.suffix in (".py", SAVED_MODEL) and not path.is_file():
        function = f":{clean(function, 60)}" if colon else ":FUNCTION" if path.suffix == ".py" else ""
        raise UsageError(f"{option}: there is no file {clean(str(path))}", remedy=_file_remedy(option, path, function))
    if path.suffix == ".py" and not (colon and _has(path, function)):
        found = _functions_in(path) or ["FUNCTION"]
        named = " or ".join(f"{option} {clean(str(path))}:{one}" for one in found)
        remedy = f"name the one that {does}: {named}"
        if colon:
            _refuse_syntax(option, path)
            raise BadInput(f"{option}: {clean(str(path))} has no function {clean(function, 60)!r}", remedy=remedy)
        raise UsageError(f"{option} {clean(name)} names a file, not a function in it", remedy=remedy)
    return name


def _file_remedy(option: str, path: Path, function: str) -> str:
    names = near(path)
    if names:
        return f"did you mean {' or '.join(f'{option} {clean(name)}{function}' for name in names)}?"
    return f"give the path of a file: {option} folder/{clean(path.name, 60)}{function}"


def _has(path: Path, name: str) -> bool:
    """Whether the word occurs in the file at all, as a name can be defined in many ways."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True  # the worker reports what is wrong with it
    return re.search(rf"\b{re.escape(name)}\b|import \*", text) is not None


def _refuse_syntax(option: str, path: Path) -> None:
    """Raises BadInput for a file that is no Python, which says more than that a function is missing in it."""
    try:
        ast.parse(path.read_bytes())
    except SyntaxError as error:
        place = f"{clean(str(path))}, line {error.lineno}" if error.lineno else clean(str(path))
        line = f": {clean(error.text, 60)}" if error.text else ""
        raise BadInput(f"{option}: {place}: {clean(error.msg)}{line}", remedy=f"correct {clean(str(path))}") from None
    except ValueError:
        return  # such as a zero byte: the worker reports it


def _functions_in(path: Path) -> list[str]:
    """The public functions of a file that can be called without arguments; none if it can't be read."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return []
    found = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return [clean(f.name, 60) for f in found if len(f.args.args) + len(f.args.posonlyargs) == len(f.args.defaults)]
