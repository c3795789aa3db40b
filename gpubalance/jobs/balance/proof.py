"""The proof of a balance's split: a run in turns with the even split."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.jobs.balance.result import result_of, result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.tried import TriedSplit
from gpubalance.jobs.balance.warnings import even_is_faster
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import Doing, PhaseBegun
from gpubalance.jobs.keep.probes import solo_bests_of
from gpubalance.jobs.measure.joint import JointRun
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND
from gpubalance.jobs.plan.measured_split import MeasuredSplit, split_over
from gpubalance.planning.problem import Allocation
from gpubalance.results.run import Measurement, Run


def prove(rounds: BalanceRounds, planned: Allocation) -> None:
    """Runs a split in turns with the even split, then checks its devices' speed.

    A device may have changed its speed during the run: its present speed decides. If the even split
    is clearly faster, as on a machine whose speed comes and goes, it is proven too.
    """
    key = rounds.key("out of memory in a proof", planned.split)
    ran_out = rounds.journal.load(key, TriedSplit)
    rounds.proofs += 1  # under which the windows of the next proof are kept
    if ran_out is not None:
        rounds.note(planned, ran_out)
        return
    try:
        proof, now = _proof(rounds, planned)
    except OutOfMemory as error:
        ran_out = rounds.out_of_memory(planned.split, error)
        rounds.journal.keep(key, ran_out)
        rounds.note(planned, ran_out)
        return
    rounds.known.learn(planned, proof)
    # Its interval is clearly below 1.
    if proof.speedup_ci95 is not None and proof.speedup_ci95[1] < 1 - WORTH_A_ROUND:
        _prove_even(rounds, planned, proof)
    if not rounds.are_over and rounds.known.moved(planned.split, now):
        text = "a device is not as fast as it was when the run began: planning again"
        rounds.watch(Doing(text))
        rounds.note(planned, TriedSplit(split=planned.split, measured=now))


def _proof(rounds: BalanceRounds, planned: Allocation) -> tuple[Run, Measurement]:
    """The run of the split in turns with the even split, and what its devices do at its end."""
    split = planned.split
    rounds.watch(PhaseBegun("proof"))
    rounds.watch(Doing(f"proving {split}, in turns with the even split"))
    solo = solo_bests_of(rounds.probe, rounds.request.devices, split)
    asked = rounds.together.run_request(split)
    party = rounds.together.gather(split)
    measurer = Measurer(party, rounds.journal, rounds.watch, rounds.proofs)
    proof = JointRun(asked, measurer, solo)
    try:
        with attach_partial(proof.findings.result):
            proof.measure()
        # It has windows
        return cast("Run", proof.findings.result()), proof.findings.last()
    except GpubalanceError as error:
        if rounds.known.best(proven=True) is not None:
            error.partial = result_so_far(rounds)
        elif isinstance(error.partial, Run):
            error.partial = result_of(rounds, MeasuredSplit(planned, (error.partial,)))
        raise


def _prove_even(rounds: BalanceRounds, planned: Allocation, proof: Run) -> None:
    """Proves the even split, which was faster than the planned one, if it is as asked."""
    even = proof.baselines.even
    if even is None:
        return
    split = split_over(even, len(rounds.request.devices))
    is_as_asked = rounds.known.is_as_asked(split)
    rounds.warn(even_is_faster(proof, even, split, is_as_asked=is_as_asked))
    if is_as_asked:
        allocated = replace(planned, split=split, step_time_s=even.step_time_s.median)
        rounds.known.learn(allocated, even)
        # Which it needs, as the largest that fits may be above the limits of the planner.
        prove(rounds, allocated)
