"""Files that users give, which may be anything: read up to a size and no further."""

from __future__ import annotations

from pathlib import Path

from gpubalance.errors import BadInput


def read_limited(path: Path, largest: int, what: str, *, remedy: str = "") -> bytes:
    """The file's bytes. Raises OSError, and BadInput for what is too large to be `what`.

    Of what has no size, as a device, no more than `largest` bytes are read either.
    """
    with path.open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise BadInput(f"{path} is larger than {largest >> 20} MiB: that is no {what}", remedy=remedy)
    return content
