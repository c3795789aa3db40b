"""Batches that take longer than a larger one: measured again, and said if it stays so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from gpubalance.jobs.events import PointDone
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.speed import measured_outside
from gpubalance.numbers.units import format_seconds
from gpubalance.planning.model import slower_batches
from gpubalance.results.common import Warning_
from gpubalance.results.probe import CurvePoint, times_of
from gpubalance.results.warnings import warning


def measure_slower_again(attempts: Attempts) -> None:
    """Measures each batch once more that took longer than a larger one; that time then counts."""
    for batch, larger in slower_batches(times_of(attempts.points.values())):
        if attempts.points[batch].measured_again:
            continue
        attempts.bench.tell(
            f"batch {batch} took longer than batch {larger}: measuring it once more"
        )
        make = partial(measured_outside, attempts, batch, attempts.rule_again)
        point = attempts.bench.get_or_make(f"{batch} slower", CurvePoint, make)
        if point is not None:
            attempts.points[batch] = point.model_copy(update={"measured_again": True})
            attempts.bench.watch(PointDone(attempts.bench.device, point))


def slower_warnings(
    device: str, points: Iterable[CurvePoint], *, given: bool = False
) -> Iterator[Warning_]:
    """A warning for each batch that takes longer than a larger one, measured or as `given`."""
    times = times_of(points, given=given)
    seconds = {batch: time_s for batch, time_s, _ in times}
    row = "slower-than-larger/given" if given else "slower-than-larger"
    for batch, larger in slower_batches(times):
        yield warning(
            row,
            device=device,
            batch=batch,
            time=format_seconds(seconds[batch]),
            larger=larger,
            larger_time=format_seconds(seconds[larger]),
        )
