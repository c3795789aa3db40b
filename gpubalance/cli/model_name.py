"""What `--model` names, as far as that can be checked without TensorFlow: nothing is imported or run."""

from __future__ import annotations

import ast
from pathlib import Path

import typer

from gpubalance.errors import UsageError
from gpubalance.settings.choices import SAVED_MODEL
from gpubalance.text import clean


def checked(model: str | None) -> str | None:
    """The name. Raises UsageError for a file that is not there, and for one without the name of a function."""
    if model is None:
        return None
    try:
        model.encode()  # a result's JSON must be able to hold it
    except UnicodeEncodeError:
        raise typer.BadParameter("its name is not UTF-8: give the file or module another") from None
    place, colon, _ = model.rpartition(":")
    path = Path(place if colon else model)
    if path.suffix in (".py", SAVED_MODEL) and not path.is_file():
        raise UsageError(f"--model: there is no file {clean(str(path))}")
    if path.suffix == ".py" and not colon:
        found = _functions_in(path) or ["FUNCTION"]
        raise UsageError(
            f"--model {clean(model)} names a file, not a function in it",
            remedy=f"name the one that builds the model: {' or '.join(f'--model {clean(model)}:{f}' for f in found)}",
        )
    return model


def _functions_in(path: Path) -> list[str]:
    """The public functions of a file that can be called without arguments; none where it can't be read."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return []
    found = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return [clean(f.name, 60) for f in found if len(f.args.args) + len(f.args.posonlyargs) == len(f.args.defaults)]
