"""A shorter import of TensorFlow."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lean_import() -> Iterator[None]:
    """Makes TensorFlow's import shorter, the longest part of a worker's start: it takes 60 to 80 % of the time.

    Python looks again and again for garbage among hundreds of thousands of objects that all stay, and Keras loads
    matplotlib where it is installed, for pictures that no worker draws. A user's model may load it as ever.
    """
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # Python's own way to say that there is none
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        del sys.modules["matplotlib"]
