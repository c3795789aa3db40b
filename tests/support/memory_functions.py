"""Memory functions of many shapes, and the batch-limit search on a device that has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gpubalance.planning.search import Grid, Limit, TriedBatch, find_limit

Memory = Callable[[int], int]  # a batch's bytes
TryBatch = Callable[[int, str], TriedBatch]
MOST = 1 << 21  # no search goes on past this batch
_STEP = 2 << 20


@dataclass(frozen=True)
class Case:
    """A memory function, the device's memory, and what a curve measured.

    `known` if memory can be read.
    """

    memory: Memory
    memory_bytes: int
    multiple: int
    points: tuple[tuple[int, int], ...]
    known: bool = True

    def fits(self, batch: int) -> bool:
        return self.memory(batch) <= self.memory_bytes

    def try_batch(self, batch: int, _: str = "") -> TriedBatch:
        fits = self.fits(batch)
        held = self.memory(batch) if fits and self.known else None
        return TriedBatch(batch, fits, held)


def linear(base: int, slope: int, limit: int, random: Random) -> Memory:
    """base + slope · b."""
    return lambda batch: base + slope * batch


def rounded(base: int, slope: int, limit: int, random: Random) -> Memory:
    """base + slope · b, rounded up to 2 MiB."""
    return lambda batch: -(-(base + slope * batch) // _STEP) * _STEP


def rounded_parts(base: int, slope: int, limit: int, random: Random) -> Memory:
    """Up to eight tensors, each rounded up to 2 MiB."""
    slopes = [slope // n for n in range(1, random.randint(2, 9))]
    return lambda batch: (
        base + sum(-(-part * batch // _STEP) * _STEP for part in slopes)
    )


def doubling(base: int, slope: int, limit: int, random: Random) -> Memory:
    """Up to four buffers that double when they are full, beside linear memory."""
    parts = [slope // random.randint(2, 20) for _ in range(random.randint(1, 4))]
    return lambda batch: (
        base + slope * batch + sum(1 << (part * batch).bit_length() for part in parts)
    )


def convex(base: int, slope: int, limit: int, random: Random) -> Memory:
    """With a quadratic term, which at the limit is a tenth to ten times the linear one."""
    share = 10 ** random.uniform(-1, 1) / limit
    return lambda batch: base + slope * batch + int(slope * share * batch * batch)


def plateau(base: int, slope: int, limit: int, random: Random) -> Memory:
    """A workspace that covers the activations of small batches."""
    hidden = int(slope * limit * random.uniform(0.05, 0.4))
    return lambda batch: base + max(hidden, slope * batch)


def falling(base: int, slope: int, limit: int, random: Random) -> Memory:
    """A smaller workspace is chosen near the limit: memory falls there, and then rises again."""
    at = int(limit * random.uniform(0.8, 1))
    saved = int(slope * limit * random.uniform(0.02, 0.2))
    return lambda batch: base + slope * batch + (saved if batch <= at else 0)


def scratch(base: int, slope: int, limit: int, random: Random) -> Memory:
    """cuDNN's fast kernels, with 2 to 5 times as much a sample, while memory has that much room.

    Of an H200's part of 4 GiB a sample took 8.4 MiB up to 176 samples, and 2.3 MiB beyond.
    """
    faster = int(slope * random.uniform(2, 5))
    maximum = base + slope * limit

    def memory(batch: int) -> int:
        with_scratch = base + faster * batch
        return with_scratch if with_scratch <= maximum else base + slope * batch

    return memory


_LINES = linear, rounded, rounded_parts
_OTHERS = doubling, convex, plateau, falling, scratch
SHAPES = {shape.__name__: shape for shape in (*_LINES, *_OTHERS)}


def case(shape: str, random: Random, *, limit: int, multiple: int, slope: int) -> Case:
    """A device whose memory ends at about `limit`, with a curve measured up to a part of that."""
    base = random.randint(0, 2 * slope * limit)
    memory = SHAPES[shape](base, slope, limit, random)
    memory_bytes = memory(limit) + random.randint(0, slope - 1)
    last = max(1.0, limit * random.choice([1 / 8, 1 / 4, 1 / 2]))
    apart = random.choice([2, 2 ** (1 / 3)])
    grid = Grid(multiple)
    sizes = {grid.batch(grid.rung(round(last / apart**n))) for n in range(60)} - {0}
    points = [(size, memory(size)) for size in sorted(sizes)]
    fitting = tuple(point for point in points if point[1] <= memory_bytes)
    return Case(memory, memory_bytes, multiple, fitting)


def random_case(shape: str, random: Random) -> Case:
    """A case with a limit of 10 to 100,000 samples on a device of 8 to 80 GB."""
    limit = int(10 ** random.uniform(1, 5))
    maximum = int(random.choice([8, 11, 24, 80]) * 1e9 * random.uniform(0.2, 0.9))
    slope = max(1, maximum // limit)
    return case(shape, random, limit=limit, multiple=random.choice([1, 8]), slope=slope)


def by_prediction(case: Case, try_batch: TryBatch | None = None, **more: Any) -> Limit:
    """The limit by this program's search, from the curve's points."""
    return find_limit(
        try_batch or case.try_batch,
        case.points if case.known else [(batch, 0) for batch, _ in case.points],
        memory_bytes=case.memory_bytes if case.known else None,
        max_batch=MOST,
        multiple=case.multiple,
        **more,
    )


def joined(case: Case, limit: Limit) -> bool:
    """Whether the two ends of the limit are neighbours."""
    rung = Grid(case.multiple).rung
    fails = limit.fails
    return fails is not None and rung(fails) - rung(limit.fits or 0) == 1
