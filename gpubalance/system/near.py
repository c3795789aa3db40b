"""What was meant by the name of a file that is not there."""

from __future__ import annotations

import difflib
from pathlib import Path

_MOST_LISTED = 2000


def meant(path: Path, remedy: str = "") -> str:
    """A remedy for a path at which there is nothing: what is spelt nearly so, then the remedy.

    The remedy alone for a path at which something is, and where nothing is near.
    """
    names = near(path)
    asked = f"did you mean {' or '.join(names)}?" if names else ""
    return "\n".join(filter(None, [asked, remedy]))


def near(path: Path) -> list[str]:
    """The paths of that kind of file that are spelt nearly so: in its folder, or where that is not there, in one of
    nearly its name.
    """
    try:
        if path.exists():
            return []
        if path.parent.is_dir():
            return [str(one) for one in _alike(path)]
        others = (folder / path.name for folder in _alike(path.parent) if folder.is_dir())
        return [name for one in others for name in ([str(one)] if one.is_file() else map(str, _alike(one)))]
    except (OSError, ValueError):  # a name that no system takes; a folder that is not ours
        return []


def _alike(path: Path) -> list[Path]:
    """At most two, beside where it would be."""
    if not path.parent.is_dir():
        return []
    there = [one for one, _ in zip(path.parent.iterdir(), range(_MOST_LISTED), strict=False)]
    stems = {one.stem.lower(): one for one in there if one.suffix == path.suffix}
    return [stems[stem] for stem in difflib.get_close_matches(path.stem.lower(), stems, n=2)]
