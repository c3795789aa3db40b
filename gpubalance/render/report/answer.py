"""The answer that a section leads with: the split, what it gives, and what keeps it from more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.numbers.units import format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.report.steps import steps_of
from gpubalance.render.report.subject import Subject
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Run
from gpubalance.settings.shares import share_text

NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Fact:
    """A figure with what it is of, and a line that says more."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Answer:
    """`headline` is the split, or of a probe what it is; `facts` its figures; `notes` sentences; `rows` the devices."""

    headline: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def answer_of(subject: Subject) -> Answer:
    """What a reader who stops after ten seconds should have read."""
    if isinstance(subject.result, Probe):
        return _of_probe(subject.result)
    if subject.run is not None:
        return _of_run(subject, subject.run)
    if subject.plan is None:
        raise AssertionError("a subject is a probe, a plan or a run")
    return _of_plan(subject, subject.plan)


def _of_run(subject: Subject, run: Run) -> Answer:
    even = run.baselines.even
    against = ""
    if even is not None:
        interval = run.speedup_ci95
        known = f"{interval[0]:.3f} to {interval[1]:.3f}; " if interval else ""
        against = f"{known}{even.split} gave {format_rate(even.throughput.median)} samples/s"
    facts = (
        Fact("throughput", f"{format_rate(run.throughput.median)} samples/s", _range(run.throughput.ci95)),
        Fact("over the even split", _times(run.speedup_over_even), against or "it was not measured"),
        Fact(
            "of the solo sum",
            format_percent(run.scaling_efficiency, 1) if run.scaling_efficiency is not None else NOT_KNOWN,
            _solo_sum(run.baselines.solo_sum),
        ),
        Fact("bound by", _binds(subject) or _slowest(subject), _step(subject)),
    )
    notes = () if run.complete else ("This run was cut short: the figures are of what was measured until then.",)
    return Answer(str(run.split), facts, (*notes, *_left_out(subject)), *_devices(subject))


def _of_plan(subject: Subject, plan: Plan) -> Answer:
    predicted = plan.predicted
    even = predicted.even
    how = "predicted; no run has proven it yet"
    facts = (
        Fact("throughput", f"{format_rate(predicted.throughput)} samples/s", how),
        Fact(
            "over the even split",
            _times(predicted.speedup_over_even),
            f"predicted; {even.split}: {format_rate(even.throughput)} samples/s" if even else "",
        ),
        Fact(
            "of the solo sum",
            format_percent(predicted.scaling_efficiency, 1) if predicted.scaling_efficiency is not None else NOT_KNOWN,
            _solo_sum(predicted.solo_sum),
        ),
        Fact("bound by", _binds(subject), _step(subject)),
    )
    return Answer(str(plan.split), facts, _left_out(subject), *_devices(subject))


def _of_probe(probe: Probe) -> Answer:
    bests = [one.solo_best for one in probe.probes if one.solo_best is not None]
    whole = len(bests) == len(probe.probes)
    total = format_rate(sum(best.throughput for best in bests)) if whole and bests else ""
    facts = [Fact("solo sum", f"{total} samples/s" if total else NOT_KNOWN, "what no split of these devices can pass")]
    rows = []
    for one in probe.probes:
        device, best, limit = probe.devices[one.device], one.solo_best, one.batch_limit
        facts.append(
            Fact(
                f"{device.label} alone",
                f"{format_rate(best.throughput)} samples/s" if best else NOT_KNOWN,
                f"at batch {best.batch}" if best else "its probe did not get that far",
            )
        )
        rows.append(
            (
                device.label,
                device.name,
                "" if limit is None else _limit(limit.fits, limit.fails),
                f"{format_rate(best.throughput)} at {best.batch}" if best else NOT_KNOWN,
                f"batch {one.sensible.batch}" if one.sensible else NOT_KNOWN,
                "yes" if one.steady else "no",
            )
        )
    notes = () if probe.complete else ("This probe is not whole: --resume goes on with what is measured.",)
    head = ("device", "name", "batch limit", "best alone, samples/s", "within 5 % from", "steady")
    return Answer("each device alone", tuple(facts), notes, head, tuple(rows))


def _limit(fits: int | None, fails: int | None) -> str:
    if fits is None:
        return f"not even {fails} fits"
    return f"{fits}; {fails} does not fit" if fails is not None else f"none up to {fits}"


def _devices(subject: Subject) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    head = ("device", "name", "batch", "samples/s", "compute", "wait", "used", "memory")
    step, run = steps_of(subject)[-1], subject.run
    memory = {r.device: r.memory_peak_bytes for r in run.replicas} if run is not None else {}
    rows = tuple(
        (
            subject.devices[part.device].label,
            subject.devices[part.device].name,
            share_text(part.batch, part.micro_batch),
            format_rate(part.batch / step.step_time_s),
            format_seconds(part.compute_s),
            format_seconds(part.wait_s),
            format_percent(part.compute_s / step.step_time_s),
            format_bytes(memory.get(part.device)),
        )
        for part in step.parts
    )
    return head, rows


def _binds(subject: Subject) -> str:
    plan = subject.plan
    if plan is None:
        return ""
    parts = []
    for share in plan.shares:
        if share.batch:
            up_to = f" (up to {share.limit})" if share.binds in ("memory", "max batch") else ""
            parts.append(f"{plan.devices[share.device].label} {share.binds}{up_to}")
    return ", ".join(parts)


def _slowest(subject: Subject) -> str:
    step = steps_of(subject)[-1]
    if len(step.parts) < 2:
        return "the one device"
    slowest = max(step.parts, key=lambda part: part.compute_s)
    return f"{subject.devices[slowest.device].label}, the slowest"


def _step(subject: Subject) -> str:
    step = steps_of(subject)[-1]
    slowest = max((part.compute_s + part.wait_s for part in step.parts), default=0.0)
    text = f"step {format_seconds(step.step_time_s)} = slowest compute {format_seconds(slowest)}"
    return f"{text} + sync {format_seconds(step.sync_s)}"


def _left_out(subject: Subject) -> tuple[str, ...]:
    batches = subject.split.batches if subject.split else ()
    idle = [d.label for d, batch in zip(subject.devices, batches, strict=True) if not batch]
    return (f"{', '.join(idle)}: no samples, left out.",) if idle else ()


def _times(ratio: float | None) -> str:
    return NOT_KNOWN if ratio is None else f"{ratio:.3f} ×"


def _range(interval: Sequence[float] | None) -> str:
    return (
        f"{format_rate(interval[0])} to {format_rate(interval[1])} (95 %)" if interval else "its interval is not known"
    )


def _solo_sum(total: float | None) -> str:
    if total is None:
        return "these devices have not been probed with these settings"
    return f"{format_rate(total)} samples/s, each device alone, in sum"
