"""The proof of a balance's split: a run in turns with the even split."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.jobs.balance.result import result_of, result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.together import TriedSplit
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import Doing, PhaseBegun
from gpubalance.jobs.keep.probes import solo_bests_of
from gpubalance.jobs.measure.joint import JointRun
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.numbers.units import format_rate
from gpubalance.planning.problem import Allocation
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.shares import Shares


def prove(rounds: BalanceRounds, planned: Allocation) -> None:
    """Runs a split in turns with the even split, then checks its devices' speed.

    A device may have changed its speed during the run: its present speed decides. If the even split
    is clearly faster, as on a machine whose speed comes and goes, it is proven too.
    """
    key = rounds.key("out of memory in a proof", planned.split)
    ran_out = rounds.journal.load(key, TriedSplit)
    rounds.proofs += 1  # under which the windows of the next proof are kept
    if ran_out is not None:
        rounds.take(planned, ran_out)
        return
    try:
        proof, now = _proof(rounds, planned)
    except OutOfMemory as error:
        ran_out = rounds.out_of_memory(planned.split, error)
        rounds.journal.keep(key, ran_out)
        rounds.take(planned, ran_out)
        return
    rounds.known.learn(planned, proof)
    # Its interval is clearly below 1.
    if proof.speedup_ci95 is not None and proof.speedup_ci95[1] < 1 - WORTH_A_ROUND:
        _prove_even(rounds, planned, proof)
    if not rounds.are_over and rounds.known.moved(planned.split, now):
        text = "a device is not as fast as it was when the run began: planning again"
        rounds.watch(Doing(text))
        rounds.take(planned, TriedSplit(split=planned.split, measured=now))


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
        with attach_partial(proof.result):
            proof.measure()
        return cast("Run", proof.result()), proof.last()  # it has windows
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
    split = _split_of(even, len(rounds.request.devices))
    is_as_asked = _is_as_asked(split, rounds.known)
    rounds.warn(
        "even-is-faster" if is_as_asked else "even-is-faster/not-asked",
        split=planned.split,
        rate=format_rate(proof.throughput.median),
        even=split,
        even_rate=format_rate(even.throughput.median),
        even_batches=" ".join(map(str, split.batches)),
    )
    if is_as_asked:
        allocated = replace(planned, split=split, step_time_s=even.step_time_s.median)
        rounds.known.learn(allocated, even)
        # Which it needs, as the largest that fits may be above the limits of the planner.
        prove(rounds, allocated)


def _split_of(measured: Measurement, devices: int) -> Shares:
    """The split that was measured, over so many devices."""
    batches = [0] * devices
    micro_batches = [0] * devices
    for replica in measured.replicas:
        batches[replica.device] = replica.batch
        micro_batches[replica.device] = replica.micro_batch
    return Shares(tuple(batches), tuple(micro_batches))


def _is_as_asked(split: Shares, known: DeviceEstimates) -> bool:
    """Whether it has the global batch and multiples that were asked for, and leaves memory free."""
    asked = known.request
    if asked.global_batch not in (None, split.global_batch):
        return False
    multiple = asked.batch_multiple or 1
    if any(batch % multiple for batch in split.batches):
        return False
    return not asked.margin_bytes or known.fits(split)
