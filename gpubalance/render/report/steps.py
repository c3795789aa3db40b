"""The parts of a step, for the even split and the chosen one, measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpubalance.results.plan import Plan, Predicted, SplitPrediction
from gpubalance.results.probe import StepTimeModel
from gpubalance.results.run import Measurement, Run
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import pieces


class Part(NamedTuple):
    """One device's part of a step: compute, wait, update; sync and input wait are the same for all."""

    device: int
    batch: int
    micro_batch: int
    compute_s: float
    update_s: float
    wait_s: float

    @property
    def busy_s(self) -> float:
        """Seconds of compute and update."""
        return self.compute_s + self.update_s


@dataclass(frozen=True)
class Step:
    """A step of a split, measured or predicted."""

    title: str
    throughput: float
    step_time_s: float
    sync_s: float
    input_wait_s: float
    parts: tuple[Part, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches of the devices that have samples."""
        return tuple(part.batch for part in self.parts)


def steps_of(subject: Subject) -> tuple[Step, ...]:
    """The steps of the even split and of the chosen one, as far as they are known; none for a probe."""
    if subject.run is not None:
        return _measured(subject.run)
    return _predicted(subject, subject.plan) if subject.plan is not None else ()


def why_no_even(subject: Subject) -> str:
    """Why the even split is not shown beside the chosen one; empty if it is shown, or with one device in use."""
    if len(steps_of(subject)) != 1 or subject.split is None or len(subject.split.used) < 2:
        return ""
    run, plan = subject.run, subject.plan
    if run is not None:
        even = run.baselines.even
        if even is not None:
            return "The chosen split is the even split."
        return "The even split was not measured, so it is not shown."
    if plan is not None and plan.predicted.even is not None:
        return "How long each device computes in the even split is in its probe: give the probe's file too."
    return "No even split fits on these devices."


def _measured(run: Run) -> tuple[Step, ...]:
    even = run.baselines.even
    # For a run of the even split, the baseline is that run itself.
    is_even = even is not None and even.step_time_s == run.step_time_s
    steps = [] if even is None or is_even else [_of(even, "Even split")]
    return (*steps, _of(run, "Chosen split"))


def _of(one: Measurement, title: str) -> Step:
    parts = tuple(
        Part(r.device, r.batch, r.micro_batch, r.compute_s, r.update_s or 0.0, r.wait_s) for r in one.replicas
    )
    return Step(title, one.throughput.median, one.step_time_s.median, one.sync_s, one.input_wait_s, parts)


def _predicted(subject: Subject, plan: Plan) -> tuple[Step, ...]:
    used = [share for share in plan.shares if share.batch]
    parts = [Part(s.device, s.batch, s.micro_batch, s.compute_s, s.update_s or 0.0, 0.0) for s in used]
    chosen = _step("Chosen split, predicted", plan.predicted, plan.predicted.sync_s, parts)
    even = plan.predicted.even
    if even is None or even.split == plan.split.of_used:
        return (chosen,)
    alone = [
        Part(share.device, batch, micro, _compute_s(one.step_time_model, update_s, batch, micro), update_s, 0.0)
        for share, batch, micro in zip(used, even.split.batches, even.split.micro_batches, strict=True)
        if (one := subject.probes[share.device]) is not None and one.step_time_model is not None
        for update_s in [share.update_s or 0.0]
    ]
    if len(alone) < len(used):
        return (chosen,)
    return (_step("Even split, predicted", even, plan.predicted.sync_s, alone), chosen)


def _compute_s(model: StepTimeModel, update_s: float, batch: int, micro_batch: int) -> float:
    return sum(count * (model.planned.step_time_s(size) - update_s) for count, size in pieces(batch, micro_batch))


def _step(title: str, predicted: Predicted | SplitPrediction, sync_s: float, parts: Sequence[Part]) -> Step:
    """The step of these parts, each of which waits for the slowest."""
    slowest = max(part.busy_s for part in parts)
    waiting = tuple(part._replace(wait_s=slowest - part.busy_s) for part in parts)
    return Step(title, predicted.throughput, predicted.step_time_s, sync_s, 0.0, waiting)
