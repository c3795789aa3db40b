"""What a device takes for other batches and micro-batches, learnt from changes of a split."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpubalance.numbers.stats import half_width
from gpubalance.planning.step_times import StepTimes

# A device's fixed cost is learnt where its samples at a time change by this part, and by so many
# half-widths.
_LEAST_CHANGE = 0.05
_CLEARLY = 2.0
# The part of a device's time for the larger of two micro-batches that is at least its samples':
# what looks like less is another speed.
_LEAST_BY_BATCH = 0.05


def fixed_samples(curve: Sequence[tuple[int, float]]) -> float | None:
    """The samples that take as long as a step's fixed cost, by the line through a curve's ends.

    The curve has seconds by batch; None if it has fewer than two points.
    """
    if len(curve) < 2:
        return None
    least, least_s = curve[0]
    most, most_s = curve[-1]
    slope_s = (most_s - least_s) / (most - least)
    slope_s = max(slope_s, _LEAST_BY_BATCH * most_s / most)
    return max(0.0, most_s / slope_s - most)


class FixedCosts:
    """A device takes β · (b + k·f) seconds for b samples in k micro-batches.

    Its f is what a plan knows, else that of the last change of b/k. Before, it is 0, by which a
    split moves too little rather than too much; but unless `may_try`, a further micro-batch takes
    as long as the others: so no split is tried that may be slower.
    """

    def __init__(self, planned: Sequence[float | None]) -> None:
        """`planned` has each device's f by a plan, or None."""
        self._planned = planned
        self._samples = list(planned)  # f
        self.may_try = False

    def compute_s(self, now: StepTimes, device: int, batch: int, count: int) -> float:
        """Seconds of so many samples in so many micro-batches, by what the device takes now."""
        old_batch = now.split.batches[device]
        old_count = now.split.counts[device]
        fixed = self._samples[device]
        if fixed is not None:
            part = (batch + count * fixed) / (old_batch + old_count * fixed)
        elif count > old_count and not self.may_try:
            part = max(batch / old_batch, count / old_count)
        else:
            part = batch / old_batch
        return part * now.compute_s[device]

    def learn(self, before: Sequence[StepTimes], steps: Sequence[StepTimes]) -> None:
        """Learns each device's f from steps before and after a change of the split."""
        old = StepTimes.of(before)
        now = StepTimes.of(steps)
        counts = zip(old.split.counts, now.split.counts, strict=True)
        for device, (old_count, count) in enumerate(counts):
            if self._planned[device] is not None:
                continue
            old_size = old.split.batches[device] / old_count
            size = now.split.batches[device] / count
            old_s = old.compute_s[device] / old_count
            size_s = now.compute_s[device] / count
            unsure = half_width([step.compute_s[device] for step in steps]) or 0.0
            unsure *= 1 + math.sqrt(len(steps) / len(before))
            more = size - old_size
            if abs(more) > size * max(_LEAST_CHANGE, _CLEARLY * unsure):
                slope_s = (size_s - old_s) / more
                slope_s = max(slope_s, _LEAST_BY_BATCH * size_s / max(size, old_size))
                self._samples[device] = max(0.0, size_s / slope_s - size)
