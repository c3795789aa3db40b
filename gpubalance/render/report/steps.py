"""The parts of a step, for the even split and the chosen one, measured or predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.results.plan import Plan, Predicted, Share, SplitPrediction
from gpubalance.results.run import Replica
from gpubalance.results.subject import ReportSubject
from gpubalance.settings.shares import pieces

# A device's share, the batch and micro-batch that it has in a split, and how long it computes for
# them.
_Part = tuple[Share, int, int, float]


class StepBar(NamedTuple):
    """A step of a split, measured or predicted; sync and input wait are the same for
    all devices.
    """

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


def steps_of(subject: ReportSubject) -> tuple[StepBar, ...]:
    """The steps of the even split and of the chosen one, as far as they are known; none for a
    probe.
    """
    run = subject.run
    if run is None:
        return tuple(_predicted(subject, subject.plan)) if subject.plan is not None else ()
    even = run.baselines.even
    # For a run of the even split, the baseline is that run itself.
    others = {"Even split": even} if even and even.step_time_s != run.step_time_s else {}
    return tuple(
        StepBar(
            title,
            one.throughput.median,
            one.step_time_s.median,
            one.sync_s,
            one.input_wait_s,
            one.replicas,
        )
        for title, one in {**others, "Chosen split": run}.items()
    )


def _predicted(subject: ReportSubject, plan: Plan) -> Iterator[StepBar]:
    even, shares = plan.predicted.even, [share for share in plan.shares if share.batch]
    if even is not None and even.split != plan.split.without_idle:
        sizes = zip(shares, even.split.batches, even.split.micro_batches, strict=True)
        parts = [
            (share, batch, micro, compute_s)
            for share, batch, micro in sizes
            if (compute_s := _compute_s(subject, share, batch, micro)) is not None
        ]
        if len(parts) == len(shares):
            yield _step("Even split, predicted", even, plan, parts)
    parts = [(share, share.batch, share.micro_batch, share.compute_s) for share in shares]
    yield _step("Chosen split, predicted", plan.predicted, plan, parts)


def _compute_s(subject: ReportSubject, share: Share, batch: int, micro: int) -> float | None:
    """What the device's probe says of that batch; None without one."""
    one = subject.probes[share.device]
    model = one and one.step_time_model
    if not model:
        return None
    return sum(
        count * (model.planned.step_time_s(size) - share.update_s)
        for count, size in pieces(batch, micro)
    )


def _step(
    title: str, of: Predicted | SplitPrediction, plan: Plan, parts: Sequence[_Part]
) -> StepBar:
    """Each device waits for the slowest."""
    slowest_s = max(compute_s + share.update_s for share, *_, compute_s in parts)
    told = [
        Replica(
            device=share.device,
            batch=batch,
            micro_batch=micro,
            throughput=batch / of.step_time_s,
            compute_s=compute_s,
            update_s=share.update_s,
            wait_s=slowest_s - compute_s - share.update_s,
            utilisation=compute_s / of.step_time_s,
            memory_peak_bytes=None,
        )
        for share, batch, micro, compute_s in parts
    ]
    return StepBar(title, of.throughput, of.step_time_s, plan.predicted.sync_s, 0.0, told)
