"""About how long the curve of a device still takes: step times, times the steps that are left."""

from __future__ import annotations

from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.warm_up import SETTLING_STEPS
from gpubalance.planning.model import fit_line
from gpubalance.results.probe import CurvePoint

# The search for the limit, the sensible batch and the look at whether the device keeps its speed
# take about as long as so many points of the largest batch.
_MORE_POINTS = 2


def curve_left_s(
    points: list[CurvePoint], largest: int, rule: StoppingRule, *, factor: int
) -> float:
    """The seconds for the batches up to the largest, each `factor` times the one before.

    One point says that step times grow as the batch does, several that they lie on a line.
    """
    last = max(points, key=lambda point: point.batch)
    sizes = [last.batch]
    while sizes[-1] * factor <= largest:
        sizes.append(sizes[-1] * factor)
    sizes += [largest] * _MORE_POINTS
    return sum(_point_s(points, last, size, rule) for size in sizes[1:])


def _point_s(
    points: list[CurvePoint], last: CurvePoint, size: int, rule: StoppingRule
) -> float:
    """The seconds for a point of that size: its warm-up and its timings."""
    step_s = last.step_time_s.median * size / last.batch
    if len(points) > 1:
        times = [(point.batch, point.step_time_s.median) for point in points]
        step_s = fit_line(times).step_time_s(size)
    # Timings of batches that differ in shape have several steps each
    cycle = last.step_time_s.steps_per_sample if last.unlike else 1
    return SETTLING_STEPS * cycle * step_s + rule.expected_s(step_s, cycle)
