"""A step of a split in its parts: the even split beside the chosen one, measured or predicted."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.render.report.subject import Subject, step_time_s
from gpubalance.results.plan import Plan
from gpubalance.results.run import Measurement, Run


@dataclass(frozen=True)
class Part:
    """One device's part of a step: compute, then wait; sync and input wait are the same for all."""

    device: int
    batch: int
    micro_batch: int
    compute_s: float
    wait_s: float


@dataclass(frozen=True)
class Step:
    """A step of a split. `measured` says whether it was, else it is predicted."""

    title: str
    batches: tuple[int, ...]
    throughput: float
    step_time_s: float
    sync_s: float
    input_wait_s: float
    parts: tuple[Part, ...]
    measured: bool


def steps_of(subject: Subject) -> tuple[Step, ...]:
    """The even split's step above the chosen split's, whichever of them is known; none of a probe."""
    if subject.run is not None:
        return _measured(subject.run)
    return _predicted(subject, subject.plan) if subject.plan is not None else ()


def why_no_even(subject: Subject) -> str:
    """A sentence on why the even split is not beside the chosen one; empty where it is or no two devices are used."""
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
    # With one that is the even split itself, the baseline is the same measurement.
    is_even = even is not None and even.step_time_s == run.step_time_s
    steps = [] if even is None or is_even else [_of(even, "Even split")]
    return (*steps, _of(run, "Chosen split"))


def _of(one: Run | Measurement, title: str) -> Step:
    parts = tuple(Part(r.device, r.batch, r.micro_batch, r.compute_s, r.wait_s) for r in one.replicas)
    return Step(
        title=title,
        batches=tuple(part.batch for part in parts),
        throughput=one.throughput.median,
        step_time_s=one.step_time_s.median,
        sync_s=one.sync_s,
        input_wait_s=one.input_wait_s,
        parts=parts,
        measured=True,
    )


def _predicted(subject: Subject, plan: Plan) -> tuple[Step, ...]:
    used = [share for share in plan.shares if share.batch]
    slowest = max((share.compute_s for share in used), default=0.0)
    parts = tuple(Part(s.device, s.batch, s.micro_batch, s.compute_s, slowest - s.compute_s) for s in used)
    predicted = plan.predicted
    chosen = Step(
        title="Chosen split, predicted",
        batches=tuple(share.batch for share in used),
        throughput=predicted.throughput,
        step_time_s=predicted.step_time_s,
        sync_s=predicted.sync_s,
        input_wait_s=0.0,
        parts=parts,
        measured=False,
    )
    even = predicted.even
    if even is None or even.batches == chosen.batches:
        return (chosen,)
    computes = [_alone_s(subject, share.device, batch) for share, batch in zip(used, even.batches, strict=True)]
    known = [compute for compute in computes if compute is not None]
    if len(known) < len(computes):
        return (chosen,)
    return (
        Step(
            title="Even split, predicted",
            batches=even.batches,
            throughput=even.throughput,
            step_time_s=even.step_time_s,
            sync_s=predicted.sync_s,
            input_wait_s=0.0,
            parts=tuple(
                Part(share.device, batch, batch, compute, max(known) - compute)
                for share, batch, compute in zip(used, even.batches, known, strict=True)
            ),
            measured=False,
        ),
        chosen,
    )


def _alone_s(subject: Subject, device: int, batch: int) -> float | None:
    one = subject.probes[device]
    model = one.step_time_model if one is not None else None
    return None if model is None else step_time_s(model, batch)
