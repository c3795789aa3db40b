"""Counts tries and failed tries of the batch-limit search, on memory functions of many shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import mean

from gpubalance.planning.grid import Grid
from gpubalance.planning.search import Limit, TriedBatch, find_limit

Memory = Callable[[int], int]  # a batch's bytes
TryBatch = Callable[[int, str], TriedBatch]
MOST = 1 << 21  # no search goes on past this batch
_CASES = 400
_CHANCE = 0.01
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
        return TriedBatch(
            batch, fits, self.memory(batch) if fits and self.known else None
        )


def _by_chance(case: Case, random: Random, *, believing: bool) -> TryBatch:
    """Tries of which some fail by chance.

    If `believing`, a batch always gets its first answer again.
    """
    known: dict[int, TriedBatch] = {}

    def try_batch(batch: int, _: str = "") -> TriedBatch:
        trial = (
            TriedBatch(batch, False)
            if random.random() < _CHANCE
            else case.try_batch(batch)
        )
        return known.setdefault(batch, trial) if believing else trial

    return try_batch


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
    most = base + slope * limit

    def memory(batch: int) -> int:
        with_scratch = base + faster * batch
        return with_scratch if with_scratch <= most else base + slope * batch

    return memory


SHAPES = {
    shape.__name__: shape
    for shape in (
        linear,
        rounded,
        rounded_parts,
        doubling,
        convex,
        plateau,
        falling,
        scratch,
    )
}


def case(shape: str, random: Random, *, limit: int, multiple: int, slope: int) -> Case:
    """A device whose memory ends at about `limit`, with a curve measured up to a part of that."""
    base = random.randint(0, 2 * slope * limit)
    memory = SHAPES[shape](base, slope, limit, random)
    memory_bytes = memory(limit) + random.randint(0, slope - 1)
    last = max(1.0, limit * random.choice([1 / 8, 1 / 4, 1 / 2]))
    apart = random.choice([2, 2 ** (1 / 3)])
    grid = Grid(multiple)
    sizes = {grid.batch(grid.rung(round(last / apart**n))) for n in range(60)} - {0}
    points = tuple(
        (size, memory(size)) for size in sorted(sizes) if memory(size) <= memory_bytes
    )
    return Case(memory, memory_bytes, multiple, points)


def random_case(shape: str, random: Random) -> Case:
    """A case with a limit of 10 to 100,000 samples on a device of 8 to 80 GB."""
    limit = int(10 ** random.uniform(1, 5))
    slope = max(
        1, int(random.choice([8, 11, 24, 80]) * 1e9 * random.uniform(0.2, 0.9)) // limit
    )
    return case(shape, random, limit=limit, multiple=random.choice([1, 8]), slope=slope)


def by_prediction(case: Case, try_batch: TryBatch | None = None) -> Limit:
    """The limit by this program's search, from the curve's points."""
    return find_limit(
        try_batch or case.try_batch,
        case.points if case.known else [(batch, 0) for batch, _ in case.points],
        memory_bytes=case.memory_bytes if case.known else None,
        max_batch=MOST,
        multiple=case.multiple,
    )


def main() -> Iterator[str]:
    yield (
        f"{_CASES} memory functions a row, limits 10 to 100,000; tries and out of memory: mean "
        "(most)"
    )
    yield f"{'memory':15}{'tries':>12}{'out of memory':>16}{'not exact':>11}"
    every = []
    for shape in SHAPES:
        cases = [
            random_case(shape, Random(f"{shape} {seed}")) for seed in range(_CASES)
        ]
        yield f"{shape:15}{_figures(cases)}"
        every += cases
    yield f"memory known, {_of_chance(every)}"
    yield f"memory not known, {_of_chance([replace(case, known=False) for case in every])}"


def _of_chance(cases: list[Case]) -> str:
    """What failures by chance do to limits and tries.

    Beside it stands a search that believes each failure.
    """
    told = f"{_CHANCE:.0%} of tries out of memory by chance"
    for believing in (True, False):
        wrong = 0
        tries = 0
        for number, case in enumerate(cases):
            limit = by_prediction(
                case, _by_chance(case, Random(number), believing=believing)
            )
            wrong += limit.fails is not None and case.fits(limit.fails)
            tries += (
                len({trial.batch for trial in limit.trials})
                if believing
                else len(limit.trials)
            )
        of = f"{wrong} of {len(cases)} wrong, {tries / len(cases):.2f} tries"
        told += f"; {'each believed' if believing else 'as it is'}: {of}"
    quiet = [by_prediction(case).trials for case in cases]
    more = []
    for trials in quiet:
        more.append(len(trials) - len({trial.batch for trial in trials}))
    repeated = mean(more)
    return f"{told}; {repeated:.2f} tries more where none is"


def _figures(cases: list[Case]) -> str:
    tries = []
    failed = []
    wide = 0
    for case in cases:
        limit = by_prediction(case)
        tries.append(len(limit.trials))
        failed.append(sum(not trial.fits for trial in limit.trials))
        wide += not joined(case, limit)
    both = f"{_mean_and_most(tries):>12}{_mean_and_most(failed):>16}"
    return f"{both}{wide / len(cases):>11.0%}"


def joined(case: Case, limit: Limit) -> bool:
    """Whether the two ends of the limit are neighbours."""
    grid = Grid(case.multiple)
    return (
        limit.fails is not None
        and grid.rung(limit.fails) - grid.rung(limit.fits or 0) == 1
    )


def _mean_and_most(counts: list[int]) -> str:
    return f"{mean(counts):.1f} ({max(counts)})"
