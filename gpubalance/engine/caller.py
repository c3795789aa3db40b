"""Whose line has called: the user's own, whatever of Keras, TensorFlow and gpubalance is between."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

# Not the user's own lines: `split.fit` opens a scope, Keras' `test_on_batch` does.
_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(keras.__file__).parent, Path(tf.__file__).parent)
)


def users_line() -> tuple[str, int]:
    """The file, and the number of the line in it."""
    caller = sys._getframe(1)
    while caller.f_back and _is_of_library(caller.f_code.co_filename):
        caller = caller.f_back
    return caller.f_code.co_filename, caller.f_lineno


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "__autograph_generated_file" in file
