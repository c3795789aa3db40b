"""The course of a balance: round after round, then the proof, until the best split is proven."""

from __future__ import annotations

from gpubalance.errors import PartialResult
from gpubalance.jobs.balance.finish import finish
from gpubalance.jobs.balance.next_split import next_split
from gpubalance.jobs.balance.packs import choose_packs
from gpubalance.jobs.balance.proof import prove
from gpubalance.jobs.balance.result import result_of
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.results.plan import Plan


def find_and_prove(rounds: BalanceRounds) -> Plan:
    """Tries splits until none promises more than was measured, and proves the best.

    A proof may show that another one is the best: it ends once the best is proven.
    """
    packs_are_chosen = False
    while True:
        planned = None
        if not rounds.are_over:
            planned = next_split(rounds.known, ran_out=rounds.ran_out > 0)
        best = rounds.known.best()
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
        elif not packs_are_chosen:
            packs_are_chosen = True
            _choose_packs(rounds, best)
        else:
            prove(rounds, best.planned)


def _choose_packs(rounds: BalanceRounds, best: MeasuredSplit) -> None:
    """Goes on with the size of packs that is best for this split, and with what it gave."""
    split = best.planned.split
    round_s = rounds.request.round_s
    measured = choose_packs(rounds.together, split, best.current[-1], round_s)
    if measured is not None:
        rounds.known.forget_together()
        rounds.known.learn(best.planned, measured)
