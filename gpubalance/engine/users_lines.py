"""The user's own lines: behind a call, in a traceback, and those on which a dataset was made."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.replaced import replaced
from gpubalance.results.timing import Remedy
from gpubalance.text import clean

# Frames in these folders are skipped: `split.fit` and Keras' `test_on_batch`, for example, open a
# scope.
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).parents[1], Path(keras.__file__).parent, Path(tf.__file__).parent)
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_IN_DATASET = "Error in user-defined function passed to"
# Names of nodes, numbers and codes of errors, and a dataset's transformations.
_OF_TENSORFLOW = re.compile(
    rf"^\s*(\(\d+\) [A-Z_]+:\s*)?(\{{\{{[^}}]*\}}\}}\s*)*({_IN_DATASET} .* iterator: \S+ )?"
)


def users_line() -> tuple[str, int]:
    """The file and the line number of the innermost caller outside the libraries."""
    caller = sys._getframe(1)
    while caller.f_back and _is_of_library(caller.f_code.co_filename):
        caller = caller.f_back
    return caller.f_code.co_filename, caller.f_lineno


def own_traceback(error: BaseException) -> str:
    """The user's own frames of an error's traceback, and what it says; those of a graph stand in
    its text.
    """
    frames = [
        (one.filename, one.lineno, one.name) for one in traceback.extract_tb(error.__traceback__)
    ]
    frames += [(file, int(line), name) for file, line, name in _FRAME.findall(str(error))]
    own = dict.fromkeys(frame for frame in frames if not _is_of_library(frame[0]))
    shown = traceback.format_list([traceback.FrameSummary(*frame) for frame in own])
    if isinstance(error, tf.errors.OpError):
        return "".join([*shown, reason_of(error)])
    return "".join([*shown, *traceback.format_exception_only(error)]).rstrip()


def reason_of(error: BaseException) -> str:
    """What an error says, in one line and without TensorFlow's own names before it.

    That is the first line, of a step's error the one before its node. It begins with the error's
    type, or another's.
    """
    text, node, _ = str(error).strip().partition("\n\t [[{{node")
    lines = text.splitlines() or [""]
    line = _OF_TENSORFLOW.sub("", lines[0 if _IN_DATASET in lines[0] or not node else -1])
    return clean(line if ":" in line[:60] else f"{type(error).__name__}: {line}", 300)


def _is_of_library(file: str) -> bool:
    return (
        file.startswith((*_LIBRARIES, threading.__file__, "<frozen "))
        or "__autograph_generated_file" in file
    )


class Made:
    """The datasets that a user's function makes, each of another one, and on which lines."""

    def __init__(self) -> None:
        # With the dataset, so that no other gets its id.
        self._lines: dict[int, tuple[Any, tuple[str, int]]] = {}

    def noted(self) -> AbstractContextManager[None]:
        """Notes all that are made inside the block."""
        begin = tf.data.Dataset.__init__

        def begun(dataset: Any, *arguments: Any, **named: Any) -> None:
            """`__init__`, which notes the line first."""
            self._lines[id(dataset)] = dataset, users_line()
            begin(dataset, *arguments, **named)

        return replaced(tf.data.Dataset, __init__=begun)

    def usual_remedies(self, data: Any) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines; nothing is tried."""
        if isinstance(data, keras.utils.PyDataset):
            what = "workers= more than one, if __getitem__ may run in several threads"
            return (Remedy(where=type(data).__name__, what=what),) if data.workers < 2 else ()
        made = [one for one in _sources(data) if id(one) in self._lines]
        maps = [one for one in made if type(one).__name__ in ("_MapDataset", "_ParallelMapDataset")]
        alone = [one for one in maps if type(one).__name__ == "_MapDataset"]
        is_cached = any("Cache" in type(one).__name__ or one.cardinality() < 0 for one in made)
        cached = (
            "cache() after this map, if its samples fit into memory and it draws nothing at random"
        )
        found = {
            "map(…, num_parallel_calls=tf.data.AUTOTUNE)": alone,
            cached: [] if is_cached else maps[:1],
        }
        return tuple(
            Remedy(where=self._where(those), what=what) for what, those in found.items() if those
        )

    def _where(self, datasets: list[Any]) -> str:
        """`train.py, line 12` or `train.py, lines 12 and 15`."""
        lines = sorted({self._lines[id(one)][1] for one in datasets})
        *first, last = [str(number) for _, number in lines]
        several = f"s {', '.join(first)} and" if first else ""
        return f"{Path(lines[0][0]).name}, line{several} {last}"


def _sources(data: Any) -> Iterator[Any]:
    """A dataset and those that it was made of, from the last to the first."""
    while isinstance(data, tf.data.Dataset):
        yield data
        data = next(iter(data._inputs()), None)
