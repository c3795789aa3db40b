"""Models that train independently as text: a line for each window, and the summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.numbers.ratio import MATTERS
from gpubalance.numbers.units import format_duration, format_percent, format_rate, format_seconds
from gpubalance.render.fields import device_grid
from gpubalance.render.rates import half_text, rate_text
from gpubalance.render.table import BLANK, CUT_SHORT, Grid, Part, shorten, shorten_front
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel, OwnWindow
from gpubalance.results.telemetry import Telemetry

_NAME_WIDTH = 26
_EXACT = 0.01  # half an interval: wider ones are shown


def turn_text(number: int, of: int, name: str, windows: Sequence[OwnWindow]) -> str:
    """`window 1 of 3, at once: GPU:0 [1024] 1343 samples/s; …`, and the total of several devices."""
    rates = [one.throughput.median for one in windows]
    parts = [
        f"{one.device.label} [{one.batch}] {format_rate(rate)} samples/s"
        for one, rate in zip(windows, rates, strict=True)
    ]
    if len(parts) > 1:
        parts.append(f"total {format_rate(sum(rates))} samples/s")
    return f"window {number} of {of}, {name}: {'; '.join(parts)}"


def independent_told(result: Independent) -> Iterator[Part]:
    """The sum and what it is compared with, each device alone and at once, and how they shared the machine."""
    yield from _answer(result)
    yield BLANK
    yield _devices(result)
    yield from (*contention_texts(result), *waiting_texts(result), *_health(result))
    failed = [one for one in result.replicas if one.failure is not None]
    yield from (f"{result.devices[one.device].label} failed: {one.failure.message}" for one in failed if one.failure)
    yield "" if result.complete or failed else CUT_SHORT


def _answer(result: Independent) -> Iterator[str]:
    trained = f"model {result.settings.model}" if len(set(_models(result))) == 1 else "a model of its own each"
    if result.throughput is None:
        left = [result.devices[one.device].label for one in result.replicas if one.failure is None]
        why = " yet" if len(left) > 1 else f", as only {left[0]} is left" if left else ", as no device is left"
        yield f"nothing was measured at once{why}; {trained}"
        return
    fed = ", each behind an input pipeline of its own" if result.settings.data else ""
    yield f"{len(result.measured)} devices at once: {rate_text(result.throughput)}, {trained}{fed}"
    if result.solo_sum:
        part = format_percent(result.throughput.median / result.solo_sum, 1)
        yield f"{part} of what they give alone, {format_rate(result.solo_sum)} samples/s in total"
    if result.joint is not None:
        yield joint_text(result, result.joint)


def joint_text(result: Independent, joint: HeldAgainst) -> str:
    """What one model on all these devices gives of that, and so what sync and waiting cost."""
    split = joint.split
    rate, ends = joint.throughput.median, joint.throughput.ci95
    text = f"one model on all of them, split {split}: {format_rate(rate)} samples/s"
    if ends is None or ends[1] - ends[0] > 2 * _EXACT * rate:
        text += f" ({half_text(joint.throughput) or 'of unknown precision'}: that run was short)"
    if result.throughput is None:
        return text
    less = 1 - rate / result.throughput.median
    batches = {one.device: one.batch for one in result.measured}
    same = tuple(batches.values()) == split.of_used.batches and not split.accumulates
    cause = "sync and waiting" if same else "sync, waiting and other batches"
    return f"{text}, {format_percent(abs(less), 1)} {f'less: {cause}' if less >= 0 else 'more, as its batches differ'}"


def _devices(result: Independent) -> Grid:
    """A row for each device, with its name or, if they differ, its model."""
    unlike = len(set(_models(result))) > 1

    def name(one: OwnModel) -> str:
        if unlike:
            return shorten_front(one.model, _NAME_WIDTH)
        return shorten(result.devices[one.device].name, _NAME_WIDTH)

    leads = {"model" if unlike else "": name, "batch": lambda one: str(one.batch)}
    return device_grid(result.devices, result.replicas, leads)


def _models(result: Independent) -> list[str]:
    return [one.model for one in result.replicas]


def contention_texts(result: Independent) -> Iterator[str]:
    """How long the devices were measured at once, and which of them then give less than alone."""
    if not result.measured:
        return
    found = [one for one in result.measured if is_contended(one)]
    measured = f"measured at once for {format_duration(result.overlap_s)}"
    if not all(one.contention_ci95 for one in result.measured):
        yield f"{measured}: too few timings to tell contention from chance"
    elif found:
        yield measured
    else:
        most = max(one.contention_ci95[1] for one in result.measured if one.contention_ci95)
        yield f"{measured}; no contention was found ({format_percent(max(0.0, most), 1)} at most)"
    for one in found:
        low, high = one.contention_ci95 or (0.0, 0.0)
        less = f"{format_percent(one.contention, 1)} less than alone ({100 * low:.1f} to {100 * high:.1f})"
        label, longer = result.devices[one.device].label, 1 / (1 - (one.contention or 0.0)) - 1
        yield f"{label} gives {less}: its steps take {format_percent(longer, 1)} longer"


def waiting_texts(result: Independent) -> Iterator[str]:
    """The fraction of its steps that each device waits for samples, if those come from the host."""
    told = []
    for one in result.replicas:
        times = ((one.input_wait_s, one.step_time_s, "at once"), (one.solo_input_wait_s, one.solo_step_time_s, "alone"))
        parts = [
            f"{format_seconds(wait_s)} ({format_percent(wait_s / step.median, 1)}) {how}"
            for wait_s, step, how in times
            if wait_s is not None and step is not None
        ]
        if parts:
            told.append(f"{result.devices[one.device].label} {', '.join(parts)}")
    if told:
        yield f"waiting for input in each step: {'; '.join(told)}"


def is_contended(one: OwnModel) -> bool:
    """Whether the whole interval shows contention, by more than two equal runs may differ."""
    return one.contention_ci95 is not None and one.contention_ci95[0] > MATTERS


def _health(result: Independent) -> Iterator[str]:
    """Temperature, power and throttling of each GPU, at once and alone; nothing for a simulated device."""
    for one in result.replicas:
        at_once, alone = _gauges(one.telemetry), _gauges(one.solo_telemetry)
        if at_once or alone:
            told = [*([f"at once {at_once}"] if at_once else []), *([f"alone {alone}"] if alone else [])]
            yield f"{result.devices[one.device].label}: {'; '.join(told)}"


def _gauges(told: Telemetry | None) -> str:
    if told is None:
        return ""
    known = [
        "" if told.temperature_c is None else f"{told.temperature_c} °C",
        "" if told.power_w is None else f"{told.power_w:.0f} W",
        f"throttled ({', '.join(told.throttle_reasons)})" if told.throttle_reasons else "",
    ]
    return ", ".join(text for text in known if text)
