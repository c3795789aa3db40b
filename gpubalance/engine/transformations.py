"""How a user's function makes its dataset: which transformations, at which lines, and the same made again otherwise.

They are noted while the function runs, as it calls the methods of `tf.data.Dataset`. So a change is made by calling the
same methods with the same arguments again, and no code of the user's is touched.
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

# Those that take one dataset and give another.
_METHODS = (
    *("map", "filter", "batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "prefetch", "cache", "shuffle"),
    *("repeat", "take", "skip", "shard", "interleave", "flat_map", "apply", "enumerate", "with_options", "window"),
)
_BATCHING = ("batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "flat_map", "interleave", "window", "apply")
_OWN = tuple(str(Path(package.__file__).parent) for package in (tf, keras))


class Line(NamedTuple):
    """Of the user's code."""

    file: str
    number: int


@dataclass(frozen=True, eq=False)
class Made:
    """A dataset that `source.method(*arguments, **options)` gave, called at that line."""

    source: Any
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    line: Line
    dataset: Any  # kept, so that no other dataset gets its id

    def on(self, source: Any, **options: Any) -> Any:
        """The same transformation of another dataset, some of its options changed."""
        return getattr(source, self.method)(*self.arguments, **{**self.options, **options})


class Transformations:
    """What was noted, by dataset."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}
        self._depth = 0
        self.line_of_py_dataset: Line | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the transformations of all datasets that are made meanwhile."""
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
        """What made it, from the last transformation to the first."""
        while (made := self._made.get(id(dataset))) is not None:
            yield made
            dataset = made.source

    def batch_size(self, dataset: Any) -> int | None:
        """Of the batches that it gives, where a `batch` or `padded_batch` in the user's code says so."""
        last = next((one for one in self.of(dataset) if one.method in _BATCHING), None)
        if last is None or last.method not in ("batch", "padded_batch"):
            return None
        return int(last.arguments[0] if last.arguments else last.options["batch_size"])

    def again(self, dataset: Any, make: Callable[[Made, Any], Any]) -> Any:
        """The same dataset, each transformation of it made by `make`, of what it was and the dataset before it."""
        made = self._made.get(id(dataset))
        return dataset if made is None else make(made, self.again(made.source, make))


def _line_of(frame: Any) -> Line | None:
    """None in TensorFlow's and Keras' own code."""
    file = frame.f_code.co_filename
    return None if file.startswith(_OWN) else Line(Path(file).name, frame.f_lineno)
