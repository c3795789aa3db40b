"""The course of a balance: round after round, then the proof, until the best split is proven."""

from __future__ import annotations

import math

from gpubalance.errors import PartialResult
from gpubalance.jobs.balance.finish import finish
from gpubalance.jobs.balance.next_split import next_split
from gpubalance.jobs.balance.packs import (
    choose_packs,
    has_much_sync,
    most_in_packs,
)
from gpubalance.jobs.balance.proof import prove
from gpubalance.jobs.balance.result import result_of
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.planning.problem import Allocation
from gpubalance.results.plan import Plan


def find_and_prove(rounds: BalanceRounds) -> Plan:
    """Tries splits until none promises more than was measured, and proves the best.

    A proof may show that another one is the best: it ends once the best is proven.
    """
    chosen: set[tuple[int, ...]] = set()  # the sets of devices whose packs are chosen
    while True:
        best = rounds.known.best()
        if best is not None and not chosen and _packs_come_first(rounds, best):
            _choose_packs(rounds, best, chosen)
            best = rounds.known.best()
        planned = _next(rounds)
        if planned is not None:
            rounds.try_split(planned)
        elif best is None:
            raise PartialResult(
                f"every split that was tried ran out of memory, {rounds.ran_out} of them",
                remedy="--margin keeps more memory free, --rounds tries more",
            )
        elif best.run is not None:
            finish(rounds, best.planned.split, best.run)
            return result_of(rounds, best)
        elif best.planned.split.used not in chosen:
            _choose_packs(rounds, best, chosen)
        else:
            prove(rounds, best.planned)


def _next(rounds: BalanceRounds) -> Allocation | None:
    """The next split to measure; None if another would gain nothing, or no more may be."""
    if rounds.are_over:
        return None
    return next_split(rounds.known, rounds.time_sums, ran_out=rounds.ran_out > 0)


def _packs_come_first(rounds: BalanceRounds, best: MeasuredSplit) -> bool:
    """Whether other packs are tried before other splits, where sync is much of a step.

    They decide how much sync is left, and so which devices are worth it. But if fewer devices
    promise more than these may give in any packs, those come first: over a link so slow that steps
    are nearly all sync, each size takes minutes.
    """
    measured = best.current[-1]
    if not has_much_sync(measured):
        return False
    used = best.planned.split.used
    most = most_in_packs(measured)
    if most == math.inf or not rounds.together.pack_bytes.get(used):
        return True
    planned = _next(rounds)
    if planned is None or not set(planned.split.used) < set(used):
        return True
    return planned.throughput <= most


def _choose_packs(
    rounds: BalanceRounds, best: MeasuredSplit, chosen: set[tuple[int, ...]]
) -> None:
    """Goes on with the size of packs that is best for this split, and with what it gave."""
    split = best.planned.split
    chosen.add(split.used)
    round_s = rounds.request.round_s
    measured = choose_packs(rounds.together, split, best.current[-1], round_s)
    if measured is not None:
        rounds.known.forget_set(split.used)
        rounds.known.learn(best.planned, measured)
