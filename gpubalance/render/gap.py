"""The distance between what devices give alone and together, cause by cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpubalance.numbers.units import format_rate
from gpubalance.render.table import BLANK, Part, TextTable
from gpubalance.results.gap import SoloGap
from gpubalance.settings.device import Device

REST = "the rest"
_MOST_CAUSES = 4
_SHOWN = 0.001  # of the solo sum: less is not worth a word or a bar


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
        Loss("other batches than the best alone", gap.batch_sizes),
    ]
    for device, rate in zip(devices, gap.slowdown, strict=True):
        how = "slower" if rate >= 0 else "faster"
        losses.append(Loss(f"{device.label} {how} than alone", rate))
    losses.append(Loss("waiting for the slowest", gap.imbalance))
    losses.append(Loss("summing gradients", gap.sync))
    if gap.slow:
        losses.append(Loss("rare slow steps", gap.slow))
    if gap.without_xla:
        losses.append(Loss("without XLA", gap.without_xla))
    return losses


def large_losses(
    devices: Sequence[Device], gap: SoloGap, most: int | None = None
) -> list[Loss]:
    """The parts of at least 0.1 % of the solo sum; with `most`, so many of them, the largest.

    What is left stands last, as `REST`, if it adds up to that.
    """
    losses = all_losses(devices, gap)
    least = _SHOWN * gap.solo_sum
    by_size = sorted(losses, key=lambda loss: -abs(loss.rate))
    large = [loss for loss in by_size if abs(loss.rate) >= least][:most]
    rest = sum(loss.rate for loss in losses if loss not in large)
    shown = [loss for loss in losses if loss in large]
    if abs(rest) >= least:
        shown.append(Loss(REST, rest))
    return shown


def gap_parts(devices: Sequence[Device], gap: SoloGap) -> Iterator[Part]:
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
