"""How a user's function makes its dataset: which transformations, at which lines, and the same with one changed.

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
from typing import Any

import psutil
import tensorflow as tf

from gpubalance.results.pulled import Mend

# Those that take one dataset and give another.
_METHODS = (
    *("map", "filter", "batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "prefetch", "cache", "shuffle"),
    *("repeat", "take", "skip", "shard", "interleave", "flat_map", "apply", "enumerate", "with_options", "window"),
)
_TENSORFLOW = str(Path(tf.__file__).parents[1])
_PART_OF_MEMORY = 0.5  # that a cache may take of what is free


@dataclass(frozen=True)
class Made:
    """A dataset that `source.method(*arguments, **options)` gave, called at that line."""

    source: Any
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    file: str
    line: int
    dataset: Any  # kept, so that no other dataset gets its id

    @property
    def is_map_one_at_a_time(self) -> bool:
        """Whether it is a map whose calls nothing makes parallel."""
        return self.method == "map" and len(self.arguments) < 2 and self.options.get("num_parallel_calls") is None


class Transformations:
    """What was noted, by dataset."""

    def __init__(self) -> None:
        self._made: dict[int, Made] = {}
        self._depth = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the transformations of all datasets that are made meanwhile."""
        before = {name: getattr(tf.data.Dataset, name) for name in _METHODS if hasattr(tf.data.Dataset, name)}
        for name, method in before.items():
            setattr(tf.data.Dataset, name, self._noting(name, method))
        try:
            yield
        finally:
            for name, method in before.items():
                setattr(tf.data.Dataset, name, method)

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def _call(dataset: Any, *arguments: Any, **options: Any) -> Any:
            caller = sys._getframe(1)
            self._depth += 1
            try:
                made = method(dataset, *arguments, **options)
            finally:
                self._depth -= 1
            if not self._depth and not caller.f_code.co_filename.startswith(_TENSORFLOW):
                where = Path(caller.f_code.co_filename).name, caller.f_lineno
                self._made[id(made)] = Made(dataset, name, arguments, options, *where, made)
            return made

        return _call

    def mends(self, dataset: Any) -> list[Mend]:
        """What may make it faster, by what it is made of."""
        made = list(self._of(dataset))
        found = []
        slow = [one for one in made if one.is_map_one_at_a_time]
        if slow:
            found.append(Mend(change="parallel map", where=_where(slow), what=_PARALLEL))
        last = self._cached_after(made)
        if last is not None:
            found.append(
                Mend(change="cache", where=_where([last]), what=_CACHE, samples=int(last.dataset.cardinality()))
            )
        return found

    def changed(self, dataset: Any, change: str) -> Any:
        """The same dataset with that change."""
        last = self._cached_after(list(self._of(dataset))) if change == "cache" else None
        return self._again(dataset, change, last)

    def _again(self, dataset: Any, change: str, cached: Made | None) -> Any:
        made = self._made.get(id(dataset))
        if made is None:
            return dataset
        options = made.options
        if change == "parallel map" and made.is_map_one_at_a_time:
            options = {**options, "num_parallel_calls": tf.data.AUTOTUNE}
        again = getattr(self._again(made.source, change, cached), made.method)(*made.arguments, **options)
        return again.cache() if made is cached else again

    def _of(self, dataset: Any) -> Iterator[Made]:
        """From the last transformation to the first."""
        while (made := self._made.get(id(dataset))) is not None:
            yield made
            dataset = made.source

    def _cached_after(self, made: list[Made]) -> Made | None:
        """The last map of samples, where what it gives ends and fits into memory, and nothing is cached yet."""
        last = next((one for one in made if one.method == "map"), None)
        if last is None or any(one.method == "cache" for one in made):
            return None
        samples, size = int(last.dataset.cardinality()), _bytes(last.dataset.element_spec)
        fits = size is not None and 0 < samples * size < _PART_OF_MEMORY * psutil.virtual_memory().available
        return last if fits else None


_PARALLEL = "map(…, num_parallel_calls=tf.data.AUTOTUNE)"
_CACHE = "cache() after this map (where it draws nothing at random)"


def _where(made: list[Made]) -> str:
    """`train.py, line 12` or `train.py, lines 12 and 15`."""
    lines = sorted({one.line for one in made})
    told = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"
    return f"{made[0].file}, {told}"


def _bytes(spec: Any) -> int | None:
    """Of one element; None where its shape is open."""
    sizes: list[int] = []
    for one in tf.nest.flatten(spec):
        count = one.shape.num_elements() if isinstance(one, tf.TensorSpec) else None
        if count is None or one.dtype == tf.string:
            return None
        sizes.append(int(count * one.dtype.size))
    return sum(sizes)
