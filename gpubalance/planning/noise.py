"""The gradient noise scale, from the norms of a step's gradients, and what a batch is worth by it.

McCandlish et al. 2018, arXiv:1812.06162. φ = tr Σ / ‖G‖² is the batch at which the noise of a
step's gradient is as large as the gradient: Σ is the covariance of one sample's gradient, G its
mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpubalance.numbers.stats import t95
from gpubalance.planning.problem import Objective

_FEWEST_STEPS = 3


@dataclass(frozen=True)
class Norms:
    """The gradient norms of a step whose B samples were taken in `parts` of b.

    Parts are devices or micro-batches. With g the whole batch's mean gradient and h a part's share
    of it (so that g = Σh), `whole` is ‖g‖² and `own` is Σ‖h‖²/b.
    """

    global_batch: int
    parts: int
    own: float
    whole: float

    @property
    def variance(self) -> float:
        """tr Σ, unbiased: Σ b‖gᵢ − g‖²/(n − 1), which is (B²·own − B·whole)/(n − 1)."""
        batch = self.global_batch
        return batch * (batch * self.own - self.whole) / (self.parts - 1)

    @property
    def signal(self) -> float:
        """‖G‖², unbiased: ‖g‖² − tr Σ/B. It may be below 0 by chance."""
        return self.whole - self.variance / self.global_batch


@dataclass(frozen=True)
class NoiseScale:
    """φ in samples with its 95 % interval; both are None if unknown, and `unknown` says why."""

    value: float | None
    ci95: tuple[float, float] | None
    unknown: str = ""


def noise_scale(steps: Sequence[Norms]) -> NoiseScale:
    """φ over some steps: the mean of tr Σ over the mean of ‖G‖², never a mean of ratios.

    The interval is Fieller's (1954) for a ratio of two means. If it is unbounded, the gradient
    can't be told from its noise, and φ is unknown.
    """
    variances = []
    signals = []
    for step in steps:
        if step.parts > 1 and math.isfinite(step.own) and math.isfinite(step.whole):
            variances.append(step.variance)
            signals.append(step.signal)
    count = len(variances)
    if count < _FEWEST_STEPS:
        return NoiseScale(None, None, f"{count} steps are too few")
    variance = statistics.fmean(variances)
    signal = statistics.fmean(signals)
    # The interval's ends are the roots of a·φ² − 2b·φ + c.
    t2 = t95(count - 1) ** 2 / count
    a = signal**2 - t2 * statistics.variance(signals)
    if signal <= 0 or a <= 0:
        return NoiseScale(
            None, None, f"{count} steps cannot separate the gradient from its noise"
        )
    if variance <= 0:
        return NoiseScale(None, None, "the gradients of all parts are alike")
    b = variance * signal - t2 * statistics.covariance(variances, signals)
    c = variance**2 - t2 * statistics.variance(variances)
    root = math.sqrt(max(0.0, b**2 - a * c))
    low = max(0.0, (b - root) / a)
    high = (b + root) / a
    return NoiseScale(variance / signal, (low, high))


def efficiency(global_batch: float, scale: float) -> float:
    """1/(1 + B/φ): what a sample in a global batch B teaches, beside one in a very small batch."""
    return scale / (scale + global_batch)


def goodput(scale: float) -> Objective:
    """B/T · 1/(1 + B/φ), samples per second times the efficiency.

    Pollux, Qiao et al., OSDI 2021.
    """

    def value(global_batch: Any, step_time_s: Any) -> Any:
        return global_batch / step_time_s * (scale / (scale + global_batch))

    return value


def learning_rate_factor(old: int, new: int, scale: float) -> float:
    """(1 + φ/B₀)/(1 + φ/B), for SGD.

    The best learning rate is proportional to 1/(1 + φ/B), eq. 2.9 of McCandlish.
    """
    return (1 + scale / old) / (1 + scale / new)
