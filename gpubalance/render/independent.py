"""Models that train independently as text: a line for each window, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpubalance.numbers.ratio import MATTERS
from gpubalance.numbers.units import format_duration, format_percent, format_seconds
from gpubalance.render.fields import device_grid, names_of
from gpubalance.render.live import state_text
from gpubalance.render.rates import half_text, per_s, rate_text
from gpubalance.render.table import BLANK, CUT_SHORT, Part, TextTable, shorten_front
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel, OwnWindow
from gpubalance.results.telemetry import Telemetry

_NAME_WIDTH = 26
_EXACT = 0.01  # half an interval: wider ones are shown


def turn_text(number: int, of: int, name: str, windows: Sequence[OwnWindow]) -> str:
    """`window 1 of 3, at once: GPU:0 [1024] 1343 samples/s; …`, and the total of
    several devices.
    """
    rates = {f"{one.device.label} [{one.batch}]": one.throughput.median for one in windows}
    if len(rates) > 1:
        rates["total"] = sum(rates.values())
    told = "; ".join(f"{whose} {per_s(rate)}" for whose, rate in rates.items())
    return f"window {number} of {of}, {name}: {told}"


def independent_told(result: Independent) -> Iterator[Part]:
    """The sum and what it is compared with, each device alone and at once, and how they shared the
    machine.
    """
    labels = [device.label for device in result.devices]
    yield from _answer(result, labels)
    yield BLANK
    yield _devices(result)
    yield from contention_texts(result)
    for one in result.replicas:
        gauges = {"at once": _gauges(one.telemetry), "alone": _gauges(one.solo_telemetry)}
        told = "; ".join(f"{how} {text}" for how, text in gauges.items() if text)
        yield f"{labels[one.device]}: {told}" if told else ""
    failures = {labels[one.device]: one.failure.message for one in result.replicas if one.failure}
    yield from (f"{label} failed: {message}" for label, message in failures.items())
    yield "" if result.complete or failures else CUT_SHORT


def _unlike(result: Independent) -> bool:
    """Whether they trained models that differ."""
    return len({one.model for one in result.replicas}) > 1


def _answer(result: Independent, labels: Sequence[str]) -> Iterator[str]:
    trained = "a model of its own each" if _unlike(result) else f"model {result.settings.model}"
    if result.throughput is None:
        left = [labels[one.device] for one in result.replicas if one.failure is None]
        why = (
            " yet"
            if len(left) > 1
            else f", as only {left[0]} is left"
            if left
            else ", as no device is left"
        )
        yield f"nothing was measured at once{why}; {trained}"
        return
    fed = ", each behind an input pipeline of its own" if result.settings.data else ""
    yield f"{len(result.measured)} devices at once: {rate_text(result.throughput)}, {trained}{fed}"
    if result.solo_sum:
        part = format_percent(result.throughput.median / result.solo_sum, 1)
        yield f"{part} of what they give alone, {per_s(result.solo_sum)} in total"
    if result.joint is not None:
        yield joint_text(result, result.joint)


def joint_text(result: Independent, joint: HeldAgainst) -> str:
    """What one model on all these devices gives of that, and so what sync and waiting cost."""
    split, rate, ends = joint.split, joint.throughput.median, joint.throughput.ci95
    text = f"one model on all of them, split {split}: {per_s(rate)}"
    if ends is None or ends[1] - ends[0] > 2 * _EXACT * rate:
        text += f" ({half_text(rate, ends).lstrip() or 'of unknown precision'}: that run was short)"
    if result.throughput is None:
        return text
    less = 1 - rate / result.throughput.median
    same = (
        tuple(one.batch for one in result.measured) == split.without_idle.batches
        and not split.accumulates
    )
    cause = "sync and waiting" if same else "sync, waiting and other batches"
    return (
        f"{text}, {format_percent(abs(less), 1)} "
        f"{f'less: {cause}' if less >= 0 else 'more, as its batches differ'}"
    )


def _devices(result: Independent) -> TextTable:
    """A row for each device, with its name or, if they differ, its model."""
    leads: dict[str, Callable[[OwnModel], str]] = {"": names_of(result.devices)}
    if _unlike(result):
        leads = {"model": lambda one: shorten_front(one.model, _NAME_WIDTH)}
    leads["batch"] = lambda one: str(one.batch)
    if any(one.input_wait_s is not None for one in result.replicas):
        leads["input wait"] = lambda one: format_seconds(one.input_wait_s)
    return device_grid(result.devices, result.replicas, leads)


def contention_texts(result: Independent) -> Iterator[str]:
    """How long the devices were measured at once, and which of them then give less than alone."""
    if not result.measured:
        return
    found = [one for one in result.measured if is_contended(one)]
    ends = [one.contention_ci95[1] for one in result.measured if one.contention_ci95]
    measured = f"measured at once for {format_duration(result.overlap_s)}"
    if len(ends) < len(result.measured):
        measured += ": too few timings to tell contention from chance"
    elif not found:
        measured += f"; no contention was found ({format_percent(max(0.0, *ends), 1)} at most)"
    yield measured
    for one in found:
        low, high = one.contention_ci95 or (0.0, 0.0)
        less = (
            f"{format_percent(one.contention, 1)} less than alone ({100 * low:.1f} to "
            f"{100 * high:.1f})"
        )
        longer = format_percent(1 / (1 - (one.contention or 0.0)) - 1, 1)
        yield f"{result.label(one.device)} gives {less}: its steps take {longer} longer"


def is_contended(one: OwnModel) -> bool:
    """Whether the whole interval shows contention, by more than two equal runs may differ."""
    return one.contention_ci95 is not None and one.contention_ci95[0] > MATTERS


def _gauges(told: Telemetry | None) -> str:
    """Temperature, power and throttling; nothing for a simulated device."""
    reasons = (told and told.throttle_reasons) or ()
    return ", ".join(
        filter(None, (state_text(told), f"throttled ({', '.join(reasons)})" if reasons else ""))
    )
