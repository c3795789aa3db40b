"""The answer at the top of a section: the split, what it gives, and what keeps it from more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.numbers.units import format_bytes, format_percent, format_rate, format_seconds
from gpubalance.render.even import largest_even_text, measured_at_largest_even, other_batch
from gpubalance.render.independent import contention_texts, joint_text, waiting_texts
from gpubalance.render.layers import answer_texts, baseline_texts, blocks_text, times_of
from gpubalance.render.pipeline import pipeline_lines
from gpubalance.render.plan import bounds_text
from gpubalance.render.report.steps import steps_of
from gpubalance.render.run import spread_text, step_text
from gpubalance.render.table import WIDTH
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan, Predicted
from gpubalance.results.probe import Probe
from gpubalance.results.run import Pipeline, Run, alone_in_use
from gpubalance.results.subject import Subject
from gpubalance.settings.shares import share_text

NOT_KNOWN = "not known"


@dataclass(frozen=True)
class Fact:
    """A named figure, and a line that says more about it."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Answer:
    """`headline` is the split, or says that this is a probe; `head` and `rows` are a table of the devices."""

    headline: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def answer_of(subject: Subject) -> Answer:
    """The answer for a reader who stops after ten seconds."""
    if isinstance(subject.result, Probe):
        return _of_probe(subject.result)
    if isinstance(subject.result, Independent):
        return _of_independent(subject.result)
    if isinstance(subject.result, Layers):
        return _of_layers(subject.result)
    if subject.run is not None:
        facts, complete = _measured(subject.run), subject.run.complete
    elif subject.plan is not None:
        facts, complete = _predicted(subject.plan), True
    else:
        raise AssertionError("a subject is a probe, a plan, a run, a cut model or models that trained independently")
    bound = Fact("what limits it", bounds_text(subject.plan) if subject.plan else _slowest(subject), _step(subject))
    notes = () if complete else ("This run was cut short: the figures are of what was measured until then.",)
    headline = f"batches {str(subject.result.split).replace('/', ' / ')}"
    fed = _pipeline_of(subject)
    return Answer(headline, (*facts, bound), (*fed, *notes, *_spread(subject), *_left_out(subject)), *_devices(subject))


def _pipeline_of(subject: Subject) -> tuple[str, ...]:
    if subject.plan is not None:
        return _pipeline(subject.plan.pipeline, subject.plan.predicted.solo_sum)
    return _pipeline(subject.run.pipeline, subject.run.baselines.solo_sum, in_front=True) if subject.run else ()


def _pipeline(pipeline: Pipeline | None, solo_sum: float | None, *, in_front: bool = False) -> tuple[str, ...]:
    """What the user's own input pipeline gives, in one line."""
    if pipeline is None:
        return ()
    return (" ".join(line.strip() for line in pipeline_lines(pipeline, solo_sum, WIDTH, in_front=in_front)),)


def _measured(run: Run) -> tuple[Fact, ...]:
    even, against = run.baselines.even, "it was not measured"
    if even is not None:
        interval = run.speedup_ci95
        known = f"{interval[0]:.3f} to {interval[1]:.3f}; " if interval else ""
        against = f"{known}{even.split} gave {format_rate(even.throughput.median)} samples/s"
        against += other_batch(run.global_batch, even.global_batch)
    largest, at_its_batch = run.baselines.largest_even, measured_at_largest_even(run.baselines)
    if largest is not None:
        against += f"; {largest_even_text(largest.split, largest.throughput.median)}"
    if at_its_batch:
        against += f"; {at_its_batch}"
    throughput = _throughput(run.throughput.median, _range(run.throughput.ci95))
    in_use = None if all(run.batches) else alone_in_use(run.baselines.solo_best, run.batches)
    return (throughput, *_ratios(run, against, run.baselines.solo_sum, in_use))


def _predicted(plan: Plan) -> tuple[Fact, ...]:
    predicted, against = plan.predicted, ""
    even = predicted.even
    if even is not None:
        batch = other_batch(plan.global_batch, even.split.global_batch)
        against = f"predicted; {even.split}: {format_rate(even.throughput)} samples/s{batch}"
    largest = predicted.largest_even
    if largest is not None:
        against += f"; {largest_even_text(largest.split, largest.throughput, plan.batch_multiple)}"
    throughput = _throughput(predicted.throughput, "predicted; no run has proven it yet")
    return (throughput, *_ratios(predicted, against, predicted.solo_sum))


def _throughput(rate: float, more: str) -> Fact:
    return Fact("throughput", f"{format_rate(rate)} samples/s", more)


def _ratios(
    of: Run | Predicted, against_even: str, solo_sum: float | None, in_use: float | None = None
) -> tuple[Fact, Fact]:
    over_even = NOT_KNOWN if of.speedup_over_even is None else f"{of.speedup_over_even:.3f} ×"
    part = NOT_KNOWN if of.scaling_efficiency is None else format_percent(of.scaling_efficiency, 1)
    alone = "these devices have not been probed with these settings"
    if solo_sum is not None:
        alone = f"{format_rate(solo_sum)} samples/s, each device alone, in total"
        alone += f", {format_rate(in_use)} of those in use" if in_use is not None else ""
    return Fact("over the even split", over_even, against_even), Fact("of the solo sum", part, alone)


def _of_probe(probe: Probe) -> Answer:
    bests = [one.solo_best for one in probe.probes if one.solo_best is not None]
    whole = len(bests) == len(probe.probes)
    total = format_rate(sum(best.throughput for best in bests)) if whole and bests else ""
    facts = [Fact("solo sum", f"{total} samples/s" if total else NOT_KNOWN, "no split of these devices gives more")]
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
    notes = _pipeline(probe.pipeline, sum(best.throughput for best in bests))
    if not probe.complete:
        notes = (*notes, "This probe is incomplete: --resume continues it.")
    head = ("device", "name", "batch limit", "best alone, samples/s", "within 5 % from", "steady")
    return Answer("each device alone", tuple(facts), notes, head, tuple(rows))


def _of_independent(result: Independent) -> Answer:
    total, part = result.throughput, None
    if total is not None and result.solo_sum:
        part = total.median / result.solo_sum
    facts = [
        Fact(
            "throughput, at once",
            f"{format_rate(total.median)} samples/s" if total else NOT_KNOWN,
            _range(total.ci95) if total else "nothing was measured at once",
        ),
        Fact(
            "of the same alone",
            NOT_KNOWN if part is None else format_percent(part, 1),
            "" if result.solo_sum is None else f"{format_rate(result.solo_sum)} samples/s, each device alone, in total",
        ),
        Fact(
            "one model on all",
            f"{format_rate(result.joint.throughput.median)} samples/s" if result.joint else NOT_KNOWN,
            joint_text(result, result.joint) if result.joint else "no joint run of these devices is kept here",
        ),
    ]
    rows = tuple(
        (
            result.devices[one.device].label,
            result.devices[one.device].name,
            str(one.batch),
            format_rate(one.solo_throughput),
            format_rate(one.throughput),
            format_percent(one.contention, 1),
            format_bytes(one.memory_peak_bytes),
        )
        for one in result.replicas
    )
    failures = ((result.devices[one.device].label, one.failure) for one in result.replicas)
    notes = [
        *contention_texts(result),
        *waiting_texts(result),
        *(f"{label} failed: {why.message}" for label, why in failures if why),
    ]
    head = ("device", "name", "batch", "alone, samples/s", "at once", "contention", "memory")
    return Answer("a model of its own on each device", tuple(facts), tuple(notes), head, rows)


def _of_layers(result: Layers) -> Answer:
    over = result.speedup_over_split
    rate = _throughput(result.throughput.median, _range(result.throughput.ci95))
    facts = (
        rate,
        Fact(
            "over the batch split",
            NOT_KNOWN if over is None else f"{over:.3f} ×",
            result.baselines.split_why_not or "each device with the whole model",
        ),
        Fact(
            "bubble",
            format_percent(result.bubble, 1),
            f"at best {format_percent(result.bubble_bound, 1)}, for equal stages without transfers",
        ),
    )
    rows = tuple(
        (
            result.devices[stage.device].label,
            result.devices[stage.device].name,
            blocks_text(stage),
            *(format_seconds(seconds) for seconds in times_of(stage)),
            str(stage.in_flight),
            format_bytes(stage.memory_peak_bytes),
        )
        for stage in result.stages
    )
    notes = [*list(answer_texts(result))[1:], *baseline_texts(result)]
    if not result.complete:
        notes.append("This was cut short: the figures are of what was measured until then.")
    parts = ("forward", "backward", "transfer", "update", "bubble")
    head = ("device", "name", "blocks", *parts, "held", "memory")
    return Answer(f"{len(result.stages)} stages of {result.settings.model}", facts, tuple(notes), head, rows)


def _limit(fits: int | None, fails: int | None) -> str:
    if fits is None:
        return f"not even {fails} fits"
    return f"{fits}; {fails} does not fit" if fails is not None else f"none found up to {fits}"


def _devices(subject: Subject) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    head = ("device", "name", "batch", "samples/s", "compute", "wait", "computing", "memory")
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


def _slowest(subject: Subject) -> str:
    if subject.run and subject.run.pipeline and subject.run.pipeline.binds:
        return "the input pipeline"
    step = steps_of(subject)[-1]
    if len(step.parts) < 2:
        return "the one device"
    slowest = max(step.parts, key=lambda part: part.busy_s)
    return f"{subject.devices[slowest.device].label}, the slowest"


def _step(subject: Subject) -> str:
    step = steps_of(subject)[-1]
    slowest = max(step.parts, key=lambda part: part.busy_s)
    sync_s = step.sync_s if len(step.parts) > 1 else None
    rest = (subject.run.awaited_input_s, subject.run.slow_s) if subject.run else ()
    return step_text(step.step_time_s, slowest.compute_s, slowest.update_s, sync_s, slowest.wait_s, *rest)


def _left_out(subject: Subject) -> tuple[str, ...]:
    batches = subject.split.batches if subject.split else ()
    idle = [d.label for d, batch in zip(subject.devices, batches, strict=True) if not batch]
    return (f"{', '.join(idle)}: no samples, left out.",) if idle else ()


def _spread(subject: Subject) -> tuple[str, ...]:
    found = subject.run.step_spread if subject.run else None
    return (spread_text(found),) if found else ()


def _range(interval: Sequence[float] | None) -> str:
    return (
        f"{format_rate(interval[0])} to {format_rate(interval[1])} (95 %)" if interval else "its interval is not known"
    )
