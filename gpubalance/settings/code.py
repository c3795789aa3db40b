"""Identifies the user's own code by its content: whether two hosts, or two days, have one model."""

from __future__ import annotations

import ast
import hashlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from gpubalance.settings.choices import SAVED_MODEL
from gpubalance.system.state import current_folder

_MAIN = ast.dump(ast.parse('__name__ == "__main__"', mode="eval").body)


def code_key(model: str, data: str | None = None) -> str:
    """The same text for the same functions and the same content of their files; empty without any.

    Of a file only what importing it runs counts: no comment, and nothing below `if __name__ ==
    "__main__":`.
    """
    hashes = [_own_code(name) for name in (model, data) if name]
    return " ".join(own[:16] for own in hashes if own)


def _own_code(name: str) -> str:
    """A hash of the file and the function's name.

    Empty for a built-in model or a file that can't be read.
    """
    try:
        path = _file_of(name)
        if path is None:
            return ""
        function = name.rpartition(":")[2] if ":" in name else ""
        return hashlib.sha256(function.encode() + b" " + _what_runs(path)).hexdigest()
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""  # the worker reports what is wrong with it


def _what_runs(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    runs = []
    for node in ast.parse(content).body:
        is_main = isinstance(node, ast.If) and ast.dump(node.test) == _MAIN
        if not is_main:
            runs.append(ast.dump(node))
    return "\n".join(runs).encode("utf-8", "surrogatepass")


def _file_of(name: str) -> Path | None:
    place, _, function = name.rpartition(":")
    if not function or not place:
        return Path(name) if name.endswith(SAVED_MODEL) else None
    if place.endswith(".py"):
        return Path(place)
    top, *inner = place.split(".")
    # Without loading it
    spec = PathFinder.find_spec(top, [str(current_folder()), *sys.path])
    if spec is None or spec.origin is None:
        return None
    if not inner:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
