"""The causes of the distance from the solo sum, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpubalance.numbers.units import format_rate
from gpubalance.results.gap import SoloGap
from gpubalance.settings.device import Device

_SHOWN = 0.001  # of the solo sum: less is not worth a word or a bar

REST = "the rest"


class Loss(NamedTuple):
    """A cause, and the samples per second that it costs; below 0 it is a gain."""

    cause: str
    rate: float

    @property
    def text(self) -> str:
        """`−38`, or `+38` for a gain, in samples per second."""
        return f"{'−' if self.rate >= 0 else '+'}{format_rate(abs(self.rate))}"


def losses(devices: Sequence[Device], gap: SoloGap, most: int | None = None) -> tuple[Loss, ...]:
    """The parts that are at least 0.1 % of the solo sum; with `most`, only that many of them, the largest.

    What is left stands last, as `REST`, if it adds up to that.
    """
    parts, least = all_losses(devices, gap), _SHOWN * gap.solo_sum
    large = sorted((part for part in parts if abs(part.rate) >= least), key=lambda part: -abs(part.rate))[:most]
    rest = Loss(REST, sum(part.rate for part in parts if part not in large))
    return (*(part for part in parts if part in large), *([rest] if abs(rest.rate) >= least else []))


def all_losses(devices: Sequence[Device], gap: SoloGap) -> tuple[Loss, ...]:
    """Every part, in order from the solo sum to what the devices give together."""
    parts = {"left out": gap.left_out, "other batches than the best alone": gap.batch_sizes}
    for device, rate in zip(devices, gap.slowdown, strict=True):
        parts[f"{device.label} {'slower' if rate >= 0 else 'faster'} than alone"] = rate
    parts |= {"waiting for the slowest": gap.imbalance, "summing gradients": gap.sync}
    parts |= {"rare slow steps": gap.slow} if gap.slow else {}
    return tuple(map(Loss, parts, parts.values()))
