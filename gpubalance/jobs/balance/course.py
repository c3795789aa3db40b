"""The course of a balance: round after round, then the proof, until the best split is proven."""

from __future__ import annotations

from gpubalance.errors import PartialResult
from gpubalance.jobs.balance.finish import finish
from gpubalance.jobs.balance.next_split import next_split
from gpubalance.jobs.balance.packs import choose_packs, has_much_sync
from gpubalance.jobs.balance.proof import prove
from gpubalance.jobs.balance.result import result_of
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.results.plan import Plan


def find_and_prove(rounds: BalanceRounds) -> Plan:
    """Tries splits until none promises more than was measured, and proves the best.

    A proof may show that another one is the best: it ends once the best is proven.
    """
    chosen: set[tuple[int, ...]] = set()  # the sets of devices whose packs are chosen
    while True:
        best = rounds.known.best()
        # At once, as packs decide how much sync is left, and so which devices are worth it.
        if best is not None and not chosen and has_much_sync(best.current[-1]):
            _choose_packs(rounds, best, chosen)
            best = rounds.known.best()
        planned = None
        if not rounds.are_over:
            planned = next_split(
                rounds.known, rounds.time_sums, ran_out=rounds.ran_out > 0
            )
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
