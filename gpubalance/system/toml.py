"""TOML files that users write, read with care."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.system.near import meant
from gpubalance.text import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_FILE = 1 << 20


def read_toml(path: Path, what: str, *, remedy: str = "") -> dict[str, Any]:
    """Reads a file's tables. `what` it should be and `remedy` go into the error: BadInput, with the file's name."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)  # a limit even for what has no size, such as a device
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"can't read the {what} {path}: {why}", remedy=meant(path, remedy)) from None
    if len(content) > _LARGEST_FILE:
        raise BadInput(f"{path} is larger than 1 MiB: that is not a {what}", remedy=remedy)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        why = clean(str(error))
        raise BadInput(f"{path} is not TOML: {why}", remedy=f"correct it there, or give another {what}") from None
