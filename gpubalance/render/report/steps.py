"""The parts of a step, for the even split and the chosen one, measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpubalance.results.plan import Plan, SplitPrediction
from gpubalance.results.run import Replica, Run
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import pieces


class Part(NamedTuple):
    """One device's part of a predicted step."""

    device: int
    batch: int
    micro_batch: int
    compute_s: float
    update_s: float
    wait_s: float = 0.0


class Step(NamedTuple):
    """A step of a split, measured or predicted; sync and input wait are the same for all devices."""

    title: str
    throughput: float
    step_time_s: float
    sync_s: float
    input_wait_s: float
    parts: Sequence[Replica | Part]

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
    if subject.run is not None:
        is_even = subject.run.baselines.even is not None
        return "The chosen split is the even split." if is_even else "The even split was not measured."
    if subject.plan is not None and subject.plan.predicted.even is not None:
        return "How long each device computes in the even split is in its probe: give the probe's file too."
    return "No even split fits on these devices."


def _measured(run: Run) -> tuple[Step, ...]:
    even = run.baselines.even
    # For a run of the even split, the baseline is that run itself.
    splits = {"Even split": even if even and even.step_time_s != run.step_time_s else None, "Chosen split": run}
    return tuple(
        Step(title, one.throughput.median, one.step_time_s.median, one.sync_s, one.input_wait_s, one.replicas)
        for title, one in splits.items()
        if one is not None
    )


def _predicted(subject: Subject, plan: Plan) -> tuple[Step, ...]:
    used = [share for share in plan.shares if share.batch]
    sync_s, predicted, even = plan.predicted.sync_s, plan.predicted, plan.predicted.even
    parts = [Part(s.device, s.batch, s.micro_batch, s.compute_s, s.update_s) for s in used]
    chosen = Step("Chosen split, predicted", predicted.throughput, predicted.step_time_s, sync_s, 0.0, _waiting(parts))
    alone = _even_parts(subject, plan, even) if even is not None and even.split != plan.split.of_used else []
    if even is None or not alone or len(alone) < len(used):
        return (chosen,)
    return Step("Even split, predicted", even.throughput, even.step_time_s, sync_s, 0.0, _waiting(alone)), chosen


def _even_parts(subject: Subject, plan: Plan, even: SplitPrediction) -> list[Part]:
    """The parts of those devices whose probes are known."""
    parts = []
    sizes = zip((s for s in plan.shares if s.batch), even.split.batches, even.split.micro_batches, strict=True)
    for share, batch, micro in sizes:
        one, update_s = subject.probes[share.device], share.update_s
        if one is not None and (model := one.step_time_model) is not None:
            compute_s = sum(
                count * (model.planned.step_time_s(size) - update_s) for count, size in pieces(batch, micro)
            )
            parts.append(Part(share.device, batch, micro, compute_s, update_s))
    return parts


def _waiting(parts: Sequence[Part]) -> list[Part]:
    """The parts, each of which waits for the slowest."""
    slowest_s = max(part.compute_s + part.update_s for part in parts)
    return [part._replace(wait_s=slowest_s - part.compute_s - part.update_s) for part in parts]
