"""The parts of a step, for the even split and the chosen one, measured or predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.results.plan import Plan, Predicted, Share, SplitPrediction
from gpubalance.results.run import Measurement, Replica
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.batch_split import BatchSplit, pieces


class StepBar(NamedTuple):
    """A step of a split; sync and input wait are the same for all devices."""

    title: str
    throughput: float
    step_time_s: float
    sync_s: float
    input_wait_s: float
    parts: Sequence[Replica]

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches of the devices that have samples."""
        return tuple(part.batch for part in self.parts)


def steps_of(subject: ReportSubject) -> list[StepBar]:
    """The steps of the even split and of the chosen one, as far as known; none for a probe."""
    run = subject.run
    if run is None:
        if subject.plan is None:
            return []
        return list(_predicted_steps(subject, subject.plan))
    steps = []
    even = run.baselines.even
    # For a run of the even split, the baseline is that run itself.
    if even and even.step_time_s != run.step_time_s:
        steps.append(_measured_step("Even split", even))
    return [*steps, _measured_step("Chosen split", run)]


def _measured_step(title: str, measured: Measurement) -> StepBar:
    return StepBar(
        title,
        measured.throughput.median,
        measured.step_time_s.median,
        measured.sync_s,
        measured.input_wait_s,
        measured.replicas,
    )


def _predicted_steps(subject: ReportSubject, plan: Plan) -> Iterator[StepBar]:
    shares = [share for share in plan.shares if share.batch]
    even = plan.predicted.even
    if even is not None and even.split != plan.split.without_idle:
        even_shares = _even_shares(subject, shares, even.split)
        if len(even_shares) == len(shares):
            yield _predicted_step("Even split, predicted", even, plan, even_shares)
    yield _predicted_step("Chosen split, predicted", plan.predicted, plan, shares)


def _even_shares(
    subject: ReportSubject, shares: Sequence[Share], even: BatchSplit
) -> list[Share]:
    """The shares with the batches of the even split, of devices with a probe to predict it by."""
    even_shares = []
    for share, batch, micro in zip(
        shares, even.batches, even.micro_batches, strict=True
    ):
        probe = subject.probes[share.device]
        if probe is None or probe.step_time_model is None:
            continue
        compute_s = 0.0
        for count, size in pieces(batch, micro):
            step_s = probe.step_time_model.planned.step_time_s(size)
            compute_s += count * (step_s - share.update_s)
        sizes = {"batch": batch, "micro_batch": micro, "compute_s": compute_s}
        even_shares.append(share.model_copy(update=sizes))
    return even_shares


def _predicted_step(
    title: str,
    predicted: Predicted | SplitPrediction,
    plan: Plan,
    shares: Sequence[Share],
) -> StepBar:
    """Each device waits for the slowest."""
    step_s = predicted.step_time_s
    slowest_s = max(share.compute_s + share.update_s for share in shares)
    replicas = [
        Replica(
            device=share.device,
            batch=share.batch,
            micro_batch=share.micro_batch,
            throughput=share.batch / step_s,
            compute_s=share.compute_s,
            update_s=share.update_s,
            wait_s=slowest_s - share.compute_s - share.update_s,
            utilisation=share.compute_s / step_s,
            memory_peak_bytes=None,
        )
        for share in shares
    ]
    return StepBar(
        title, predicted.throughput, step_s, plan.predicted.sync_s, 0.0, replicas
    )
