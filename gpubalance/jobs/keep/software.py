"""What decides how fast a step is, besides devices and settings: the host, the software and the user's own code."""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from gpubalance import __version__
from gpubalance.settings.choices import SAVED_MODEL
from gpubalance.system.state import current_folder
from gpubalance.system.versions import software


def software_key(model: str, data: str | None = None) -> str:
    """The same text for the same host, the same versions and the same content of the files of a user's own code."""
    code = _own_codes(model, data)
    return " ".join([platform.node(), __version__, *(one or "" for one in software()), *code])


def code_key(model: str, data: str | None = None) -> str:
    """The same text for the same content of the files of a user's own code; empty where none is used."""
    return " ".join(hash_[:16] for hash_ in _own_codes(model, data) if hash_)


def _own_codes(model: str, data: str | None) -> list[str]:
    return [_own_code(model), *([_own_code(data)] if data else [])]


def _own_code(model: str) -> str:
    """A hash of the user's file, as a change makes it another. Empty for a built-in model or an unreadable file."""
    try:
        path = _file_of(model)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
    except (OSError, ValueError):
        return ""  # the worker says what is wrong with it


def _file_of(model: str) -> Path | None:
    place, _, function = model.rpartition(":")
    if not function or not place:
        return Path(model) if model.endswith(SAVED_MODEL) else None
    if place.endswith(".py"):
        return Path(place)
    top, *inner = place.split(".")
    found = PathFinder.find_spec(top, [str(current_folder()), *sys.path])  # loads nothing
    if found is None or found.origin is None:
        return None
    if not inner:
        return Path(found.origin)
    path = Path(found.origin).parent.joinpath(*inner)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
