"""Finds the user's own line behind a call, below any frames of Keras, TensorFlow and gpubalance."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import keras
import tensorflow as tf

# Frames in these folders are skipped: `split.fit` and Keras' `test_on_batch`, for example, open a scope.
_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(keras.__file__).parent, Path(tf.__file__).parent)
)


def users_line() -> tuple[str, int]:
    """The file and the line number of the innermost caller outside the libraries."""
    caller = sys._getframe(1)
    while caller.f_back and _is_of_library(caller.f_code.co_filename):
        caller = caller.f_back
    return caller.f_code.co_filename, caller.f_lineno


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "__autograph_generated_file" in file
