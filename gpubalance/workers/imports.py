"""Makes the import of TensorFlow shorter."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lean_import() -> Iterator[None]:
    """Shortens TensorFlow's import, the longest part of a worker's start, to 60 to 80 % of its time.

    Python searches again and again for garbage among hundreds of thousands of objects that all stay, and Keras loads
    matplotlib, if installed, for pictures that no worker draws. A user's model may still load it.
    """
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # Python's own way to mark a module as missing
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        del sys.modules["matplotlib"]
