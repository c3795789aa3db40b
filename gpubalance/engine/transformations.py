"""Notes how a user's function makes its dataset, by which transformations on which lines, and what usually helps there.

The calls of `tf.data.Dataset`'s methods are noted while the function runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gpubalance.engine.step.part import replaced
from gpubalance.results.pulled import Remedy

# The methods that take one dataset and return another.
_METHODS = (
    *("map", "filter", "batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "prefetch", "cache", "shuffle"),
    *("repeat", "take", "skip", "shard", "interleave", "flat_map", "apply", "enumerate", "with_options", "window"),
)
_BATCHING = ("batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "flat_map", "interleave", "window", "apply")
_OWN = tuple(str(Path(package.__file__).parent) for package in (tf, keras))


class Line(NamedTuple):
    """A line of the user's code."""

    file: str
    number: int


@dataclass(frozen=True, eq=False)
class Made:
    """A dataset that a method of `source` returned on that line.

    `in_parallel`: with calls at once, if it is a map. `size` is that of its batches, if it is a batch.
    """

    source: Any
    method: str
    in_parallel: bool
    size: int | None
    line: Line
    dataset: Any  # kept, so that no other dataset gets its id


class Transformations:
    """The noted transformations, by dataset."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}

    def noted(self) -> AbstractContextManager[None]:
        """Notes the transformations of all datasets that are made inside the block."""
        data = tf.data.Dataset
        methods = {name: getattr(data, name) for name in _METHODS if hasattr(data, name)}
        return replaced(data, **{name: self._noting(name, method) for name, method in methods.items()})

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def _call(dataset: Any, *arguments: Any, **options: Any) -> Any:
            line, made = _line_of(sys._getframe(1)), method(dataset, *arguments, **options)
            if line is not None:
                in_parallel = len(arguments) > 1 or options.get("num_parallel_calls") is not None
                size = (*arguments, options.get("batch_size"))[0] if name in ("batch", "padded_batch") else None
                self._made[id(made)] = Made(dataset, name, in_parallel, size, line, made)
            return made

        return _call

    def _of(self, dataset: Any) -> Iterator[Made]:
        """The transformations that made a dataset, from the last to the first."""
        while (made := self._made.get(id(dataset))) is not None:
            yield made
            dataset = made.source

    def batch_size(self, dataset: Any) -> int | None:
        """The size of the dataset's batches, if a `batch` or `padded_batch` in the user's code tells it, else None."""
        return next((one.size and int(one.size) for one in self._of(dataset) if one.method in _BATCHING), None)

    def usual_remedies(self, data: Any) -> tuple[Remedy, ...]:
        """What usually makes such data faster, at which lines; nothing is tried."""
        if isinstance(data, keras.utils.PyDataset):
            what = "workers= more than one, if __getitem__ may run in several threads"
            return (Remedy(where=type(data).__name__, what=what),) if data.workers < 2 else ()
        made = list(self._of(data))
        maps = [one for one in made if one.method == "map"]
        is_cached = any(one.method == "cache" or one.dataset.cardinality() < 0 for one in made)
        found = {
            "map(…, num_parallel_calls=tf.data.AUTOTUNE)": [one.line for one in maps if not one.in_parallel],
            "cache() after this map, if its samples fit into memory and it draws nothing at random": [
                one.line for one in maps[:1] if not is_cached
            ],
        }
        return tuple(Remedy(where=_where(lines), what=what) for what, lines in found.items() if lines)


def _line_of(frame: Any) -> Line | None:
    """The line that a frame is on; None in TensorFlow's and Keras' own code."""
    file = frame.f_code.co_filename
    return None if file.startswith(_OWN) else Line(Path(file).name, frame.f_lineno)


def _where(lines: Sequence[Line]) -> str:
    """`train.py, line 12` or `train.py, lines 12 and 15`."""
    *first, last = sorted({line.number for line in lines})
    several = f"s {', '.join(map(str, first))} and" if first else ""
    return f"{lines[0].file}, line{several} {last}"
