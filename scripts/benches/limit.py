"""Counts tries and failed tries of the batch-limit search, on memory functions of many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from statistics import mean

from gpubalance.planning.search import TriedBatch
from tests.support.memory_functions import (
    SHAPES,
    Case,
    TryBatch,
    by_prediction,
    joined,
    random_case,
)

_CASES = 400
_CHANCE = 0.01


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


def _mean_and_most(counts: list[int]) -> str:
    return f"{mean(counts):.1f} ({max(counts)})"
