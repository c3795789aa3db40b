"""Identifies the content of a user's own code, which decides whether two hosts, or two days, have
the same model.
"""

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
    """The same text for the same functions of the user's and the same content of their files; empty
    without any.

    Of a file only what importing it runs counts: no comment, and nothing below `if __name__ ==
    "__main__":`.
    """
    hashes = map(_own_code, filter(None, (model, data)))
    return " ".join(one[:16] for one in hashes if one)


def _own_code(model: str) -> str:
    """A hash of the file and the function's name. Empty for a built-in model or a file that can't
    be read.
    """
    try:
        path = _file_of(model)
        function = model.rpartition(":")[2].encode() if ":" in model else b""
        return hashlib.sha256(function + b" " + _what_runs(path)).hexdigest() if path else ""
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""  # the worker reports what is wrong with it


def _what_runs(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    module = ast.parse(content)
    runs = [
        node
        for node in module.body
        if not (isinstance(node, ast.If) and ast.dump(node.test) == _MAIN)
    ]
    return "\n".join(map(ast.dump, runs)).encode("utf-8", "surrogatepass")


def _file_of(model: str) -> Path | None:
    place, _, function = model.rpartition(":")
    if not function or not place:
        return Path(model) if model.endswith(SAVED_MODEL) else None
    if place.endswith(".py"):
        return Path(place)
    top, *inner = place.split(".")
    # Without loading it
    found = PathFinder.find_spec(top, [str(current_folder()), *sys.path])
    if found is None or found.origin is None:
        return None
    if not inner:
        return Path(found.origin)
    path = Path(found.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
