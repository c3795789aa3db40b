"""Which file was meant by a name that does not exist."""

from __future__ import annotations

import difflib
from pathlib import Path

_MOST_LISTED = 2000


def meant(path: Path, remedy: str = "") -> str:
    """The remedy for a path that does not exist: the similar names, then `remedy`.

    `remedy` alone if the path exists or no name is similar.
    """
    names = near(path)
    asked = f"did you mean {' or '.join(names)}?" if names else ""
    return "\n".join(filter(None, [asked, remedy]))


def near(path: Path) -> list[str]:
    """Similarly spelt paths with the same suffix: in its folder, or if that is missing, in similarly spelt folders."""
    try:
        if path.exists():
            return []
        if path.parent.is_dir():
            return [str(one) for one in _alike(path)]
        others = (folder / path.name for folder in _alike(path.parent) if folder.is_dir())
        return [name for one in others for name in ([str(one)] if one.is_file() else map(str, _alike(one)))]
    except (OSError, ValueError):  # a name that the system rejects; another user's folder
        return []


def _alike(path: Path) -> list[Path]:
    """At most two files of the same folder."""
    if not path.parent.is_dir():
        return []
    there = [one for one, _ in zip(path.parent.iterdir(), range(_MOST_LISTED), strict=False)]
    stems = {one.stem.lower(): one for one in there if one.suffix == path.suffix}
    return [stems[stem] for stem in difflib.get_close_matches(path.stem.lower(), stems, n=2)]
