"""Finds changes that may make a user's dataset faster, and applies one to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import keras
import psutil
import tensorflow as tf

from gpubalance.engine.transformations import Line, Made, Transformations
from gpubalance.errors import BadInput
from gpubalance.results.pulled import Change, Mend

_PART_OF_MEMORY = 0.5  # of the free memory, at most, for a cache
_MOST_WORKERS = 8
_COMPARED = 2  # batches
_WHAT: dict[Change, str] = {
    "parallel map": "map(…, num_parallel_calls=tf.data.AUTOTUNE)",
    "cache": "cache() after this map (if it draws nothing at random)",
    "batch first": "batch before this map, which takes batches as well",
}


def find(data: Any, noted: Transformations) -> tuple[Mend, ...]:
    """The changes worth trying, by the transformations that the dataset is made of."""
    if isinstance(data, keras.utils.PyDataset):
        few = data.workers < 2 and _workers() > 1
        return (Mend(change="workers", where=_where([noted.line_of_py_dataset]), what=_workers_text()),) if few else ()
    made = list(noted.of(data))
    lines: dict[Change, list[Made]] = {
        "parallel map": [one for one in made if _is_one_at_a_time(one)],
        "batch first": [mapped for _, mapped in _batched_maps(made)],
        "cache": _cached_after(made),
    }
    found = [
        Mend(change=change, where=_where([one.line for one in some]), what=_WHAT[change], samples=_filled(change, some))
        for change, some in lines.items()
        if some
    ]
    threads = data.options().threading.private_threadpool_size if isinstance(data, tf.data.Dataset) else None
    if threads and threads < _cores():
        options = [one.line for one in made if one.method == "with_options"]
        found.append(Mend(change="threads", where=_where(options[:1]), what=_threads_text(threads)))
    return tuple(found)


def changed(data: Any, noted: Transformations, change: Change) -> Any:
    """The same dataset with that change. Raises BadInput if "batch first" gives other values."""
    if change == "workers":
        other = copy(data)
        other.workers = _workers()
        return other
    if change == "threads":
        options = tf.data.Options()
        options.threading.private_threadpool_size = _cores()
        return data.with_options(options)
    made = list(noted.of(data))
    cached = _cached_after(made)
    first = dict(_batched_maps(made))

    def make(one: Made, source: Any) -> Any:
        if change == "parallel map" and _is_one_at_a_time(one):
            return one.on(source, num_parallel_calls=tf.data.AUTOTUNE)
        if change == "batch first" and one in first.values():
            return source
        if change == "batch first" and one in first:
            return first[one].on(one.on(source))
        return one.on(source).cache() if change == "cache" and one in cached else one.on(source)

    other = noted.again(data, make)
    if change == "batch first" and not _gives_the_same(data, other):
        raise BadInput("the map does not give the same of batches")
    return other


def _is_one_at_a_time(one: Made) -> bool:
    """Whether it is a map that runs one call at a time."""
    return one.method == "map" and len(one.arguments) < 2 and one.options.get("num_parallel_calls") is None


def _batched_maps(made: list[Made]) -> list[tuple[Made, Made]]:
    """Each `batch` that directly follows a `map`, with that map."""
    return [(one, before) for one, before in pairwise(made) if (one.method, before.method) == ("batch", "map")]


def _cached_after(made: list[Made]) -> list[Made]:
    """The last map, if its finite output fits into memory and nothing is cached yet; else empty."""
    last = next((one for one in made if one.method == "map"), None)
    if last is None or any(one.method == "cache" for one in made):
        return []
    samples, size = int(last.dataset.cardinality()), _bytes(last.dataset.element_spec)
    fits = size is not None and 0 < samples * size < _PART_OF_MEMORY * psutil.virtual_memory().available
    return [last] if fits else []


def _gives_the_same(one: Any, other: Any) -> bool:
    """Whether the first batches are equal to the last bit."""
    try:
        for pair in zip(one.take(_COMPARED), other.take(_COMPARED), strict=True):
            mine, theirs = ([values.numpy().tobytes() for values in tf.nest.flatten(batch)] for batch in pair)
            if mine != theirs:
                return False
    except Exception:  # noqa: BLE001  (the user's own map gets what it was not made for)
        return False
    return True


def _filled(change: Change, some: list[Made]) -> int:
    """The samples that must pass once before a cache helps; 0 for other changes."""
    return int(some[0].dataset.cardinality()) if change == "cache" else 0


def _cores() -> int:
    return os.cpu_count() or 1


def _workers() -> int:
    return min(_MOST_WORKERS, _cores())


def _workers_text() -> str:
    return f"workers={_workers()} instead of one (if __getitem__ may run in several threads)"


def _threads_text(threads: int) -> str:
    return f"private_threadpool_size={_cores()}, or none; it is {threads} here"


def _where(lines: Sequence[Line | None]) -> str:
    """`train.py, line 12` or `train.py, lines 12 and 15`."""
    known = sorted({line.number for line in lines if line})
    file = next((line.file for line in lines if line), "the dataset")
    if len(known) > 1:
        return f"{file}, lines {', '.join(map(str, known[:-1]))} and {known[-1]}"
    return f"{file}, line {known[0]}" if known else file


def _bytes(spec: Any) -> int | None:
    """The bytes of one element; None if its shape is open or it has text."""
    sizes: list[int] = []
    for one in tf.nest.flatten(spec):
        count = one.shape.num_elements() if isinstance(one, tf.TensorSpec) else None
        if count is None or one.dtype == tf.string:
            return None
        sizes.append(int(count * one.dtype.size))
    return sum(sizes)
