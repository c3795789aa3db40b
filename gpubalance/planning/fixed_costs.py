"""What a device takes for other batches and micro-batches, by a plan or by changes of a split."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubalance.numbers.stats import half_width
from gpubalance.planning.model import Curve
from gpubalance.planning.parts import StepTimes

# A device's fixed cost is learnt where its samples at a time change by this part, and by so many
# half-widths.
_LEAST_CHANGE = 0.05
_CLEARLY = 2.0
# The part of a device's time for the larger of two micro-batches that is at least its samples':
# what looks like less is another speed, and tells nothing.
_LEAST_BY_BATCH = 0.05


def fixed_samples(curve: Curve, size: int) -> float:
    """The samples that take as long as the fixed cost of a step of that size.

    It is by the line through that size and half of it: right beside it, a curve may be a step.
    """
    step_s = curve.step_time_s(size)
    slope_s = (step_s - curve.step_time_s(size / 2)) / (size / 2)
    slope_s = max(slope_s, _min_slope_s(step_s, size))
    return max(0.0, step_s / slope_s - size)


class FixedCosts:
    """A device takes β · (b + k·f) seconds for b samples in k micro-batches.

    f is the samples that take as long as the fixed cost of a micro-batch: what a plan knows, until
    a change of b/k clearly shows another one. Without a plan f is 0 before that, so that a split
    moves too little rather than too much. But unless `may_add_micro_batches`, a further micro-batch
    takes as long as the others: so no split is tried that may be slower.
    """

    def __init__(self, planned: Sequence[float | None]) -> None:
        """`planned` has each device's f by a plan, or None."""
        self._samples = list(planned)  # f
        self.may_add_micro_batches = False

    def compute_s(self, now: StepTimes, device: int, batch: int, count: int) -> float:
        """Seconds of so many samples in so many micro-batches, by what the device takes now."""
        old_batch = now.split.batches[device]
        old_count = now.split.counts[device]
        fixed = self._samples[device]
        if fixed is not None:
            part = (batch + count * fixed) / (old_batch + old_count * fixed)
        elif count > old_count and not self.may_add_micro_batches:
            part = max(batch / old_batch, count / old_count)
        else:
            part = batch / old_batch
        return part * now.compute_s[device]

    def learn(self, before: Sequence[StepTimes], steps: Sequence[StepTimes]) -> None:
        """Learns each device's f from steps before and after a change of the split."""
        old = StepTimes.median_of(before)
        now = StepTimes.median_of(steps)
        counts = zip(old.split.counts, now.split.counts, strict=True)
        for device, (old_count, count) in enumerate(counts):
            old_size = old.split.batches[device] / old_count
            size = now.split.batches[device] / count
            old_s = old.compute_s[device] / old_count
            size_s = now.compute_s[device] / count
            unsure = half_width([step.compute_s[device] for step in steps]) or 0.0
            unsure *= 1 + math.sqrt(len(steps) / len(before))
            clearly = max(_LEAST_CHANGE, _CLEARLY * unsure)
            known = self._samples[device]
            if known is not None:
                foretold_s = old_s * (size + known) / (old_size + known)
                if abs(size_s / foretold_s - 1) <= clearly:
                    continue
            if abs(size - old_size) > size * clearly:
                slope_s = (size_s - old_s) / (size - old_size)
                if slope_s >= _min_slope_s(size_s, max(size, old_size)):
                    self._samples[device] = max(0.0, size_s / slope_s - size)


def _min_slope_s(step_s: float, size: float) -> float:
    """The least seconds that one sample more can take, of a size that takes so long."""
    return _LEAST_BY_BATCH * step_s / size
