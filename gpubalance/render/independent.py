"""Models that train independently as text: a line for each window, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpubalance.numbers.stats import MATTERS
from gpubalance.numbers.units import format_duration, format_percent, format_seconds
from gpubalance.render.devices import state_text
from gpubalance.render.rates import half_text, per_s, rate_text, slowed_text
from gpubalance.render.table import (
    BLANK,
    CUT_SHORT,
    Paragraph,
    TextTable,
    device_table,
    names_of,
    shorten_front,
)
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel, OwnWindow
from gpubalance.results.timing import Telemetry
from gpubalance.settings.measuring import window_place

_NAME_WIDTH = 26
_EXACT = 0.01  # half an interval: wider ones are shown


def window_text(number: int, of: int, name: str, windows: Sequence[OwnWindow]) -> str:
    """`window 1 of 3, at once: GPU:0 [1024] 1343 samples/s; …`, and the total of several."""
    rates: dict[str, float] = {}
    for window in windows:
        rates[f"{window.device.label} [{window.batch}]"] = window.throughput.median
    if len(rates) > 1:
        rates["total"] = sum(rates.values())
    texts = [f"{whose} {per_s(rate)}" for whose, rate in rates.items()]
    return f"{window_place(number, of)}, {name}: {'; '.join(texts)}"


def independent_summary(result: Independent) -> Iterator[Paragraph]:
    """The sum and its baselines, each device alone and at once, and how they shared the machine."""
    yield from _answer(result)
    yield BLANK
    yield _devices(result)
    yield from contention_texts(result)
    for replica in result.replicas:
        gauges = {"at once": replica.telemetry, "alone": replica.solo_telemetry}
        texts = {how: _gauges_text(telemetry) for how, telemetry in gauges.items()}
        known = [f"{how} {text}" for how, text in texts.items() if text]
        if known:
            yield f"{result.label(replica.device)}: {'; '.join(known)}"
    for replica in result.replicas:
        if replica.failure is not None:
            yield f"{result.label(replica.device)} failed: {replica.failure.message}"
    if not result.complete and not any(replica.failure for replica in result.replicas):
        yield CUT_SHORT


def _are_heterogeneous(result: Independent) -> bool:
    """Whether they trained models that differ."""
    return len({replica.model for replica in result.replicas}) > 1


def _answer(result: Independent) -> Iterator[str]:
    trained = f"model {result.settings.model}"
    if _are_heterogeneous(result):
        trained = "a separate model each"
    if result.throughput is None:
        yield (
            "the devices were not measured at the same "
            f"time{_why_not_at_once(result)}; {trained}"
        )
        return
    fed = slowed_text(result.settings)
    if result.settings.data:
        fed += ", each with its own input pipeline"
    yield f"{len(result.measured)} devices at once: {rate_text(result.throughput)}, {trained}{fed}"
    if result.solo_sum:
        part = format_percent(result.throughput.median / result.solo_sum, 1)
        yield f"{part} of what they give alone, {per_s(result.solo_sum)} in total"
    if result.joint is not None:
        yield joint_text(result, result.joint)


def _why_not_at_once(result: Independent) -> str:
    left = [
        result.label(replica.device)
        for replica in result.replicas
        if replica.failure is None
    ]
    if len(left) > 1:
        return " yet"
    if left:
        return f", as only {left[0]} is left"
    return ", as no device is left"


def joint_text(result: Independent, joint: HeldAgainst) -> str:
    """What one model on all these devices gives of that, and so what sync and waiting cost."""
    split = joint.split
    rate = joint.throughput.median
    ends = joint.throughput.ci95
    text = f"one model on all devices, split {split}: {per_s(rate)}"
    if ends is None or ends[1] - ends[0] > 2 * _EXACT * rate:
        precision = half_text(rate, ends).lstrip() or "of unknown precision"
        text += f" ({precision}: that run was short)"
    if result.throughput is None:
        return text
    less = 1 - rate / result.throughput.median
    part = format_percent(abs(less), 1)
    batches = tuple(replica.batch for replica in result.measured)
    if less < 0:
        return f"{text}, {part} more, as its batches differ"
    causes = ["sync", "waiting"]
    if batches != split.without_idle.batches or split.accumulates:
        causes.append("other batches")
    if result.settings.data:
        causes.append("a single input pipeline")
    return f"{text}, {part} less: {', '.join(causes[:-1])} and {causes[-1]}"


def _devices(result: Independent) -> TextTable:
    """A row for each device, with its name or, if they differ, its model."""
    leads: dict[str, Callable[[OwnModel], str]] = {"": names_of(result.devices)}
    if _are_heterogeneous(result):
        leads = {"model": lambda replica: shorten_front(replica.model, _NAME_WIDTH)}
    leads["batch"] = lambda replica: str(replica.batch)
    if any(replica.input_wait_s is not None for replica in result.replicas):
        leads["input wait"] = lambda replica: format_seconds(replica.input_wait_s)
    return device_table(result.devices, result.replicas, leads)


def contention_texts(result: Independent) -> Iterator[str]:
    """How long the devices were measured at once, and which of them then give less than alone."""
    if not result.measured:
        return
    contended = [replica for replica in result.measured if is_contended(replica)]
    ends = [
        replica.contention_ci95[1]
        for replica in result.measured
        if replica.contention_ci95
    ]
    measured = f"measured at once for {format_duration(result.overlap_s)}"
    if len(ends) < len(result.measured):
        measured += ": too few timings to tell contention from chance"
    elif not contended:
        maximum = format_percent(max(0.0, *ends), 1)
        measured += f"; no contention found (at most {maximum})"
    yield measured
    for replica in contended:
        contention = replica.contention or 0.0
        low, high = replica.contention_ci95 or (0.0, 0.0)
        less = f"{format_percent(replica.contention, 1)} less than alone"
        within = f"({100 * low:.1f} to {100 * high:.1f})"
        longer = format_percent(1 / (1 - contention) - 1, 1)
        label = result.label(replica.device)
        yield f"{label} gives {less} {within}: its steps take {longer} longer"


def is_contended(replica: OwnModel) -> bool:
    """Whether the whole interval shows contention, by more than two equal runs may differ."""
    return replica.contention_ci95 is not None and replica.contention_ci95[0] > MATTERS


def _gauges_text(telemetry: Telemetry | None) -> str:
    """Temperature, power and throttling; nothing for a simulated device."""
    texts = [state_text(telemetry)]
    if telemetry is not None and telemetry.throttle_reasons:
        texts.append(f"throttled ({', '.join(telemetry.throttle_reasons)})")
    return ", ".join(filter(None, texts))
