"""What a step consists of, as a sum, and the distance between devices alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.numbers.units import format_percent, format_rate, format_seconds
from gpubalance.planning.parts import SLOW
from gpubalance.render.table import BLANK, Paragraph, TextTable
from gpubalance.results.plan import Predicted, Share
from gpubalance.results.run import Replica, Run, SoloGap
from gpubalance.settings.device import Device

_SHOWN = 1e-3  # of a step: what is less changes none of its figures
REST = "the rest"
_MOST_CAUSES = 4


def step_text(step: Run | Predicted, parts: Sequence[Replica | Share]) -> str:
    """`step 718 ms = slowest compute 702 ms + update 3.90 ms + sync 11.9 ms; imbalance 1.007 (…)`.

    Left out are an update of no duration, what a single device has not, and what a step does not
    wait for. With noise the slowest device waits in those steps in which another one is the
    slowest. The parts are of the steps that were timed: where these took longer than the others,
    that is subtracted.
    """
    step_s = step.step_time_s.median if isinstance(step, Run) else step.step_time_s
    are_several = sum(part.batch > 0 for part in parts) > 1
    slowest = max(parts, key=lambda part: part.compute_s + part.update_s)
    terms = [f"slowest compute {format_seconds(slowest.compute_s)}"]
    if slowest.update_s:
        terms.append(f"update {format_seconds(slowest.update_s)}")
    if isinstance(slowest, Replica) and slowest.wait_s > _SHOWN * step_s:
        terms.append(f"wait {format_seconds(slowest.wait_s)}")
    if are_several:
        terms.append(f"sync {format_seconds(step.sync_s)}")
    if isinstance(step, Run):
        terms += _measured_terms(step)
    text = f"step {format_seconds(step_s)} = {' + '.join(terms)}"
    if isinstance(step, Run) and step.excess_s > _SHOWN * step_s:
        text += f" − {format_seconds(step.excess_s)} (timestamped steps were slower)"
    if are_several:
        text += f"; imbalance {step.imbalance:.3f} (1 = they finish together)"
    return text


def _measured_terms(run: Run) -> list[str]:
    """What no prediction has: waiting for input, and rare slow steps."""
    terms = []
    input_s = run.awaited_input_s
    if input_s is not None:
        part = format_percent(input_s / run.step_time_s.median, 1)
        terms.append(f"waiting for input {format_seconds(input_s)} ({part})")
    if run.slow_s:
        terms.append(f"rare slow steps {format_seconds(run.slow_s)}{_how_rare(run)}")
    return terms


def _how_rare(run: Run) -> str:
    """` (2 of 27 steps timed alone took over 1.5 × the median)`; empty where that is not known."""
    steps = run.slow_steps
    if steps is None:
        return ""
    if not steps.count:
        return (
            f" (in steps between the {steps.timed} that were timed one by one; none of "
            "those was slow)"
        )
    return (
        f" ({steps.count} of {steps.timed} steps timed one by one took over {SLOW:g} "
        "× the median)"
    )


class Loss(NamedTuple):
    """A cause, and the samples per second that it costs; below 0 it is a gain."""

    cause: str
    rate: float

    @property
    def text(self) -> str:
        """`−38`, or `+38` for a gain, in samples per second."""
        sign = "−" if self.rate >= 0 else "+"
        return f"{sign}{format_rate(abs(self.rate))}"


def all_losses(devices: Sequence[Device], gap: SoloGap) -> list[Loss]:
    """Every part, in order from the solo sum to what the devices give together."""
    losses = [
        Loss("left out", gap.left_out),
        Loss("not each device's best batch size", gap.batch_sizes),
    ]
    for device, rate in zip(devices, gap.slowdown, strict=True):
        how = "slower" if rate >= 0 else "faster"
        losses.append(Loss(f"{device.label} {how} than alone", rate))
    losses.append(Loss("waiting for the slowest device", gap.imbalance))
    losses.append(Loss("summing gradients", gap.sync))
    if gap.slow:
        losses.append(Loss("rare slow steps", gap.slow))
    if gap.without_xla:
        losses.append(Loss("without XLA", gap.without_xla))
    return losses


def large_losses(
    devices: Sequence[Device], gap: SoloGap, maximum: int | None = None
) -> list[Loss]:
    """The parts of at least 0.1 % of the solo sum; with `maximum`, so many of them, the largest.

    What is left stands last, as `REST`, if it adds up to that.
    """
    losses = all_losses(devices, gap)
    minimum = _SHOWN * gap.solo_sum
    by_size = sorted(losses, key=lambda loss: -abs(loss.rate))
    large = [loss for loss in by_size if abs(loss.rate) >= minimum][:maximum]
    rest = sum(loss.rate for loss in losses if loss not in large)
    shown = [loss for loss in losses if loss in large]
    if abs(rest) >= minimum:
        shown.append(Loss(REST, rest))
    return shown


def gap_parts(devices: Sequence[Device], gap: SoloGap) -> Iterator[Paragraph]:
    """Why the devices gave less together than alone: a sum of the largest causes, as a table."""
    losses = large_losses(devices, gap, _MOST_CAUSES)
    if not losses:
        return
    rows = [
        ("samples/s, from alone to together", ""),
        ("the devices alone", format_rate(gap.solo_sum)),
    ]
    rows += [(loss.cause, loss.text) for loss in losses]
    rows.append(("together", format_rate(gap.throughput)))
    yield BLANK
    yield TextTable(rows, left=(0,))
    yield BLANK
