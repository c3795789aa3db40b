"""Files that users name, read with care; which was meant; what the system refuses; the log."""

from __future__ import annotations

import difflib
import errno
import itertools
import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput, UsageError
from gpubalance.text import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_FILE = 1 << 20
_MOST_LISTED = 2000
_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_TEXTS = tuple(map(os.strerror, _NUMBERS))


def content_of(path: Path | None, what: str, maximum: int, remedy: str) -> bytes:
    """A file's content, or stdin's for None.

    Raises UsageError if it is not there, BadInput if it can't be read, or has more than `maximum`
    bytes: then it is not `what` it should be.
    """
    name = path or "stdin"
    try:
        with path.open("rb") if path else open(0, "rb", closefd=False) as file:
            # A limit even for what has no size, such as a device
            content = file.read(maximum + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        why = getattr(error, "strerror", None) or str(error)
        if path is not None:
            remedy = meant(path, remedy)
        message = f"can't read {name}: {why}"
        if isinstance(error, FileNotFoundError):
            raise UsageError(message, remedy=remedy) from None
        raise BadInput(message, remedy=remedy) from None
    if len(content) > maximum:
        raise BadInput(
            f"{name} is larger than {maximum >> 20} MiB, so it is not {what}",
            remedy=remedy,
        )
    return content


def read_toml(path: Path, what: str, *, remedy: str = "") -> dict[str, Any]:
    """Reads a file's tables.

    Raises BadInput, which names the file, `what` it should be and the `remedy`; UsageError if it is
    not there.
    """
    content = content_of(path, f"a {what}", _LARGEST_FILE, remedy)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"{path} is not valid TOML: {clean(str(error))}"
        raise BadInput(
            why, remedy=f"correct it there, or give another {what}"
        ) from None


def meant(path: Path, remedy: str) -> str:
    """The remedy for a path that does not exist.

    Similarly spelt names of its folder with its suffix, then `remedy`.
    """
    try:
        there = list(itertools.islice(path.parent.iterdir(), _MOST_LISTED))
    except (OSError, ValueError):
        # A name that the system rejects; another user's folder
        return remedy
    if path in there:
        return remedy
    by_stem = {
        other.stem.lower(): str(other) for other in there if other.suffix == path.suffix
    }
    stems = difflib.get_close_matches(path.stem.lower(), by_stem, n=2)
    if not stems:
        return remedy
    return f"did you mean {' or '.join(by_stem[stem] for stem in stems)}?\n{remedy}"


def is_among(file: Path, names: Iterable[str | Path]) -> bool:
    """Whether the file exists, and one of these names leads to it."""
    for name in names:
        # One of them is not there, or can be no file's name.
        with suppress(OSError, ValueError):
            if file.samefile(name) and file.is_file():
                return True
    return False


def is_about_files(text: str) -> bool:
    """Whether an error's text is about these: TensorFlow raises the same for a lack of memory."""
    return any(refusal in text for refusal in _TEXTS)


def log_traceback(error: BaseException) -> None:
    """Prints an error's traceback on stderr: a worker's log, whose disk may be full.

    That must not take the place of the error itself.
    """
    with suppress(OSError):
        traceback.print_exception(error)
