"""The user's own lines: behind a call, and those on which a dataset was made."""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine.replacing import Method, acting
from gpubalance.results.timing import Remedy

# Frames in these folders are skipped: `split.fit` and Keras' `test_on_batch`, for example, open a
# scope.
_LIBRARIES = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(keras.__file__).parent}{os.sep}",
    f"{Path(tf.__file__).parent}{os.sep}",
    "<frozen ",
)
_PYTHONS_OWN = f"{sysconfig.get_path('stdlib')}{os.sep}"
# Packages may lie in the folder of Python's own library.
_PACKAGES = {"site-packages", "dist-packages"}


def users_line() -> tuple[str, int]:
    """The file and the line number of the innermost caller outside the libraries."""
    caller = sys._getframe(1)
    while caller.f_back and is_of_library(caller.f_code.co_filename):
        caller = caller.f_back
    return caller.f_code.co_filename, caller.f_lineno


def warn_user(text: str) -> None:
    """Warns at the innermost line of the user's own code."""
    warnings.warn_explicit(text, UserWarning, *users_line())


def is_of_library(file: str) -> bool:
    """Whether a frame's file is Keras', TensorFlow's, gpubalance's or of Python's own library."""
    if file.startswith(_LIBRARIES) or "__autograph_generated_file" in file:
        return True
    return file.startswith(_PYTHONS_OWN) and not is_of_package(file)


def is_of_package(file: str) -> bool:
    """Whether a frame's file is of an installed package."""
    return not _PACKAGES.isdisjoint(Path(file).parts)


class DatasetLines:
    """On which lines a user's function makes its datasets, each of another one."""

    def __init__(self) -> None:
        # With the dataset, so that no other gets its id.
        self._lines: dict[int, tuple[Any, tuple[str, int]]] = {}

    def noting(self) -> AbstractContextManager[None]:
        """Notes all that are made inside the block."""

        def note(init: Any, dataset: Any, *arguments: Any, **named: Any) -> None:
            self._lines[id(dataset)] = dataset, users_line()
            init(dataset, *arguments, **named)

        return acting({Method.of_all(tf.data.Dataset, "__init__"): note})

    def usual_remedies(self, data: Any) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines; nothing is tried."""
        if isinstance(data, keras.utils.PyDataset):
            if data.workers > 1:
                return ()
            what = "workers= more than one, if __getitem__ may run in several threads"
            return (Remedy(where=type(data).__name__, what=what),)
        maps = []
        sequential_maps = []
        can_be_cached = True
        for dataset in _sources(data):
            if id(dataset) not in self._lines:
                continue
            kind = type(dataset).__name__
            if kind in ("_MapDataset", "_ParallelMapDataset"):
                maps.append(dataset)
            if kind == "_MapDataset":
                sequential_maps.append(dataset)
            if "Cache" in kind or dataset.cardinality() < 0:
                can_be_cached = False
        remedies = []
        if sequential_maps:
            what = "map(…, num_parallel_calls=tf.data.AUTOTUNE)"
            remedies.append(Remedy(where=self._where(sequential_maps), what=what))
        if maps and can_be_cached:
            what = (
                "cache() after this map, if its samples fit into memory and it draws nothing at "
                "random"
            )
            remedies.append(Remedy(where=self._where(maps[:1]), what=what))
        return tuple(remedies)

    def _where(self, datasets: list[Any]) -> str:
        """`train.py, line 12` or `train.py, lines 12 and 15`."""
        lines = sorted({self._lines[id(dataset)][1] for dataset in datasets})
        file = Path(lines[0][0]).name
        *others, last = [str(number) for _, number in lines]
        if others:
            return f"{file}, lines {', '.join(others)} and {last}"
        return f"{file}, line {last}"


def _sources(data: Any) -> Iterator[Any]:
    """A dataset and those that it was made of, from the last to the first."""
    while isinstance(data, tf.data.Dataset):
        yield data
        data = next(iter(data._inputs()), None)
