"""Notes how a user's function makes its dataset, by which transformations on which lines, to make it again changed.

The calls of `tf.data.Dataset`'s methods are noted while the function runs. A change is then made by calling the same
methods with the same arguments again, without touching the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

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
    """A dataset that `source.method(*arguments, **options)` returned on that line."""

    source: Any
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    line: Line
    dataset: Any  # kept, so that no other dataset gets its id

    def on(self, source: Any, **options: Any) -> Any:
        """Applies the same transformation to another dataset, with some of its options changed."""
        return getattr(source, self.method)(*self.arguments, **{**self.options, **options})


class Transformations:
    """The noted transformations, by dataset."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}
        self._depth = 0
        self.line_of_py_dataset: Line | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the transformations of all datasets that are made inside the block."""
        data, parts = tf.data.Dataset, keras.utils.PyDataset
        before = {name: getattr(data, name) for name in _METHODS if hasattr(data, name)}
        begin = parts.__init__
        for name, method in before.items():
            setattr(data, name, self._noting(name, method))
        parts.__init__ = self._noting_line(begin)
        try:
            yield
        finally:
            parts.__init__ = begin
            for name, method in before.items():
                setattr(data, name, method)

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def _call(dataset: Any, *arguments: Any, **options: Any) -> Any:
            line = _line_of(sys._getframe(1))
            self._depth += 1
            try:
                made = method(dataset, *arguments, **options)
            finally:
                self._depth -= 1
            if not self._depth and line is not None:
                self._made[id(made)] = Made(dataset, name, arguments, options, line, made)
            return made

        return _call

    def _noting_line(self, begin: Callable[..., None]) -> Callable[..., None]:
        @wraps(begin)
        def _call(dataset: Any, *arguments: Any, **options: Any) -> None:
            self.line_of_py_dataset = _line_of(sys._getframe(1))
            begin(dataset, *arguments, **options)

        return _call

    def of(self, dataset: Any) -> Iterator[Made]:
        """The transformations that made a dataset, from the last to the first."""
        while (made := self._made.get(id(dataset))) is not None:
            yield made
            dataset = made.source

    def batch_size(self, dataset: Any) -> int | None:
        """The size of the dataset's batches, if a `batch` or `padded_batch` in the user's code tells it, else None."""
        last = next((one for one in self.of(dataset) if one.method in _BATCHING), None)
        if last is None or last.method not in ("batch", "padded_batch"):
            return None
        return int(last.arguments[0] if last.arguments else last.options["batch_size"])

    def again(self, dataset: Any, make: Callable[[Made, Any], Any]) -> Any:
        """The dataset made again: `make` gets each transformation and the new dataset that it applies to."""
        made = self._made.get(id(dataset))
        return dataset if made is None else make(made, self.again(made.source, make))


def _line_of(frame: Any) -> Line | None:
    """The line that a frame is on; None in TensorFlow's and Keras' own code."""
    file = frame.f_code.co_filename
    return None if file.startswith(_OWN) else Line(Path(file).name, frame.f_lineno)
