"""Whether a device keeps its speed: a card that gets hot lowers its clocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpubalance.errors import DeadlinePassed, OutOfMemory, PartialResult
from gpubalance.jobs.events import PointDone
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.record import Record

_FEWEST = 3  # points, of which one is in the middle
# The part by which a batch's step time must change for the device to have changed its speed, beyond
# the uncertainty of both measurements.
_MOVED = 0.03
# A step goes at the host's pace, which changes by itself, if twice as many samples take at most so
# many times as long. On an H200 a step of 8 samples took 0.81 of the time a minute later, one of
# 136 took 0.99.
_AT_HOST_PACE = 1.1


class Drift(Record):
    """Whether the device changed its speed before the end of its probe."""

    changed: bool


def keeps_speed(attempts: Attempts) -> bool:
    """Whether the device still takes what it took at first.

    Measures the first and the middle one of the points again at which the device sets the pace.
    """
    points = at_device_pace(list(attempts.points.values()))
    if len(points) < _FEWEST:
        return True
    first = points[0]
    middle = points[len(points) // 2]

    def measured() -> Drift:
        return Drift(
            changed=_has_changed(attempts, first) or _has_changed(attempts, middle)
        )

    drift = attempts.bench.get_or_make("drift", Drift, measured)
    return drift is None or not drift.changed


def at_device_pace(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Those whose steps take as long as the device needs, not as long as the host."""
    at_own_pace = []
    for point in points:
        if not any(_is_no_longer(other, point) for other in points):
            at_own_pace.append(point)
    return at_own_pace


def _is_no_longer(other: CurvePoint, point: CurvePoint) -> bool:
    """Whether a step of at least twice as many samples takes hardly longer than the point's."""
    times = other.step_time_s.median / point.step_time_s.median
    return other.batch >= 2 * point.batch and times <= _AT_HOST_PACE


def _has_changed(attempts: Attempts, before: CurvePoint) -> bool:
    """Whether a step certainly takes another time now than before.

    Takes a glance first, then a short look if there may be a change, then one as long as a
    point's to confirm it.
    """
    rule = attempts.rule
    factor = 1.0
    for looked in (rule.glance, rule.look, attempts.rule_again):
        now = measured_outside(attempts, before.batch, looked)
        if now is None:
            return False
        factor = now.step_time_s.median / before.step_time_s.median
        half_width = factor * now.step_time_s.relative_half_width
        least = _MOVED + half_width + before.step_time_s.relative_half_width
        if looked == rule.glance:
            least = _MOVED - half_width
        if abs(factor - 1) <= least:
            return False
    attempts.bench.tell(
        f"batch {before.batch} now takes {factor:.2f} times as long as at first: "
        "measuring once more"
    )
    return True


def measured_outside(
    attempts: Attempts, batch: int, rule: StoppingRule
) -> CurvePoint | None:
    """A point outside the search for the limit; None if the worker is lost."""
    try:
        attempts.bench.ensure_worker(last=True)
        return attempts.measured(batch, rule)
    except (PartialResult, DeadlinePassed, OutOfMemory) as error:
        attempts.bench.lose(error)
        return None


def measure_all_again(attempts: Attempts) -> None:
    """Measures all batches once more, on a device as hot as when the change was found."""
    for batch in sorted(attempts.points, reverse=True):
        _measure_again(attempts, batch)


def _measure_again(attempts: Attempts, batch: int) -> None:
    make = partial(measured_outside, attempts, batch, attempts.rule_again)
    now = attempts.bench.get_or_make(f"{batch} once more", CurvePoint, make)
    if now is not None:
        attempts.bench.watch(PointDone(attempts.bench.device, now))
    point = now or attempts.points[batch]
    changes = {"steady": False, "measured_again": now is not None}
    attempts.points[batch] = point.model_copy(update=changes)
