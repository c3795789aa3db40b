"""The batch limit of a device: explores up to where its memory may end, then searches there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.curve import measure_once_more
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.jobs.probe.time_left import curve_left_s, planned_step_s
from gpubalance.planning.memory import predict_limit
from gpubalance.planning.model import Curve, Line, fit_line, measured_curve
from gpubalance.planning.search import ASKED_FOR, Limit, TriedBatch, find_limit
from gpubalance.results.probe import CurvePoint, peaks_by_batch, times_of
from gpubalance.settings.device import hosts_of

# With fewer batches a line through their memory may only show cuDNN's workspaces.
_POINTS_FOR_A_LINE = 3
# The curve ends here, but not before its third point, if memory predicts no limit, and neither
# `--max-batch` nor the number of samples in the data sets one. It may end sooner, on a plateau.
_LARGEST_UNASKED = 1024
# Throughput rises if it gains more than this fraction per octave.
_PLATEAU = 0.03
# Nobody trains with steps that are so long, if so much smaller batches give as many samples/s.
_LONG_S = 1.0
# For a split of a small model, shorter steps are long enough: see `_long_s`.
_LEAST_LONG_S = 0.25
_SLOW_LINK_BYTES_PER_S = 1e9
_SLOW_NETWORK_BYTES_PER_S = 1e8
_SMALL_SYNC = 0.03  # of a step
_THREE_OCTAVES = 8  # times as large
_RISE_IN_THREE = (1 + _PLATEAU) ** 3
# For a split, whose rounds try its batches anyway, and where steps are long, the ends of the search
# may be this fraction apart.
_CLOSE = 0.04
# No limit is looked for above this.
_LARGEST = 1 << 20


class Explored(NamedTuple):
    """What exploring has found, with which `search_limit` begins."""

    # A limit is looked for up to this; with a plateau it is the largest batch that was measured.
    max_batch: int
    # The batch at which exploring failed
    failed: int | None
    # From this batch on throughput does not rise, so no limit is looked for.
    plateau: int | None = None


def explore(attempts: Attempts) -> Explored:
    """Measures octaves up to half of the limit that memory predicts.

    Once memory predicts one, only every second octave is measured, unless steps are long: see
    `_factor`. Exploring ends sooner at a failure, on a plateau, or at the largest batch asked for.
    One worker measures all; one that is lost is replaced.
    """
    probe_worker = attempts.probe_worker
    size = probe_worker.request.batch_multiple
    # `max_batch` may change with the first batch: the worker reports how many samples the data has.
    if probe_worker.max_batch is not None:
        size = min(size, probe_worker.max_batch)
    failed = None
    plateau = None
    while size <= (probe_worker.max_batch or _LARGEST) and not _is_enough(
        attempts, size
    ):
        precision = attempts.precision(size, _expected_largest(probe_worker))
        attempt = attempts.try_batch(size, "for the curve", within=precision)
        if not attempt.trains:
            failed = size
            break
        if _seems_to_pay(attempts, size):
            _measure_best_before_again(attempts, size)
        plateau = plateau_of(attempts)
        if plateau is not None:
            break
        factor = _factor(attempts, size)
        _report_time_left(attempts, factor)
        size *= factor
    if plateau is not None:
        up_to = max(attempts.points)
    elif probe_worker.max_batch:
        up_to = probe_worker.max_batch
    elif _predicted(attempts) or failed:
        # Memory ends somewhere.
        up_to = _LARGEST
    else:
        # Nothing shows where memory ends: no larger batch is tried.
        up_to = max(attempts.points, default=1)
    return Explored(up_to, failed, plateau)


def _seems_to_pay(attempts: Attempts, size: int) -> bool:
    """Whether a probe for a split finds no plateau at this batch, though its steps are long.

    Then the batch seems to give more samples/s than smaller ones.
    """
    may_end = attempts.probe_worker.request.for_split and _may_end_on_plateau(attempts)
    is_long = attempts.points[size].step_time_s.median >= _long_s(attempts)
    return may_end and is_long and plateau_of(attempts) is None


def _measure_best_before_again(attempts: Attempts, size: int) -> None:
    """Measures the best smaller batch once more: the device may have become faster since.

    Without this a device whose speed rises by 10 % in half a minute seems to gain by each larger
    batch, until its steps take seconds.
    """
    smaller = [point for point in attempts.points.values() if point.batch < size]
    if smaller:
        best = max(smaller, key=lambda point: point.throughput.median)
        measure_once_more(attempts, best.batch, f"{best.batch} beside {size}")


def _factor(attempts: Attempts, size: int) -> int:
    """How many times as large the next size is: 2, or 4 once memory predicts a limit.

    It stays 2 where exploring may end on a plateau, the next steps would be long, and 4 is too much
    for the curve: the next size may show the plateau, which spares minutes of searching the limit.
    """
    if _predicted(attempts) is None:
        return 2
    is_long = 2 * attempts.points[size].step_time_s.median > _long_s(attempts)
    may_show = is_long and _may_end_on_plateau(attempts)
    return 2 if may_show and _is_enough(attempts, 4 * size) else 4


def plateau_of(attempts: Attempts) -> int | None:
    """The batch at which throughput stopped rising; None if larger ones than were tried may pay.

    On a large device a small model gets there long before memory is full.
    """
    if not _may_end_on_plateau(attempts):
        return None
    curve = measured_curve(times_of(attempts.points.values()))
    if not (_ends_flat(attempts, curve) or _single_step_is_flat(attempts, curve)):
        return None
    enough = max(_rate(curve, size) for size in curve.batches) / (1 + _PLATEAU)
    return min(batch for batch in curve.batches if _rate(curve, batch) >= enough)


def _ends_flat(attempts: Attempts, curve: Curve) -> bool:
    """Whether the largest batch of the curve shows that throughput has stopped rising."""
    largest = curve.batches[-1]
    smaller = [size for size in curve.batches if size <= largest / _THREE_OCTAVES]
    # With fewer octaves a split would have few sizes to choose from.
    long_s = _long_s(attempts)
    if not smaller or curve.step_time_s(largest) < long_s:
        return False
    if attempts.probe_worker.request.for_split:
        # One flat octave is enough: rounds with longer steps would take minutes.
        best_before = max(_rate(curve, size) for size in curve.batches[:-1])
        if _rate(curve, largest) <= (1 + _PLATEAU) * best_before:
            return True
    return _pays_no_more(curve, largest, long_s, smaller)


def _single_step_is_flat(attempts: Attempts, curve: Curve) -> bool:
    """Whether the largest batch of which one step was timed shows that throughput stopped rising.

    A single step is inexact, so it is compared with batches at least three octaves smaller. For a
    split it is compared with all up to that batch: rounds measure again what they choose.
    """
    steps_s = attempts.single_steps()
    if not steps_s:
        return False
    largest = max(steps_s)
    min_factor, max_rise = _THREE_OCTAVES, _RISE_IN_THREE
    if attempts.probe_worker.request.for_split:
        min_factor, max_rise = 1, 1 + _PLATEAU
    compared = [size for size in curve.batches if size <= largest / min_factor]
    if not compared or steps_s[largest] < _long_s(attempts):
        return False
    best_compared = max(_rate(curve, size) for size in compared)
    return largest / steps_s[largest] <= max_rise * best_compared


def _may_end_on_plateau(attempts: Attempts) -> bool:
    """Whether exploring may end on a plateau, before memory is full."""
    request = attempts.probe_worker.request
    return not request.find_limit and request.max_batch is None


def _long_s(attempts: Attempts) -> float:
    """The step time, in seconds, from which a plateau of throughput ends the exploring.

    It is 1 s, and for a split on GPUs it may be less. A joint step also sums gradients; a larger
    batch makes that a smaller part of the step. So a step is long enough once the sum over a slow
    link takes at most 3 % of it, but not below 0.25 s. Example: within a host, at 1 GB/s, gradients
    of 0.4 MB take 0.4 ms, which is 3 % of 13 ms: 0.25 s is long enough. Gradients of 100 MB take
    0.1 s, which is 3 % of 3.3 s: it stays 1 s. The sync of simulated devices does not depend on
    the gradients: it stays 1 s, too.
    """
    probe_worker = attempts.probe_worker
    facts = probe_worker.facts
    request = probe_worker.request
    if facts is None or not request.for_split or probe_worker.device.simulated:
        return _LONG_S
    bytes_per_s = _SLOW_LINK_BYTES_PER_S
    if len(hosts_of(request.devices)) > 1:
        bytes_per_s = _SLOW_NETWORK_BYTES_PER_S
    sync_s = facts.model.gradient_bytes / bytes_per_s
    return min(max(_LEAST_LONG_S, sync_s / _SMALL_SYNC), _LONG_S)


def _pays_no_more(
    model: Line | Curve, batch: int, long_s: float, smaller: Iterable[int] = ()
) -> bool:
    """Whether steps of that batch are long, and throughput hardly rose in three octaves.

    It is compared with the rate three octaves below, and those of `smaller` batches.
    """
    if model.step_time_s(batch) < long_s:
        return False
    before = [max(1, batch // _THREE_OCTAVES), *smaller]
    best_before = max(_rate(model, size) for size in before)
    return _rate(model, batch) <= _RISE_IN_THREE * best_before


def _rate(model: Line | Curve, batch: int) -> float:
    return batch / model.step_time_s(batch)


def _report_time_left(attempts: Attempts, factor: int) -> None:
    """Tells how long the curve still takes, unless nobody knows yet how far it goes."""
    probe_worker = attempts.probe_worker
    largest = _predicted(attempts)
    if probe_worker.usable_bytes is None:
        largest = probe_worker.max_batch or _LARGEST_UNASKED
    if largest is not None:
        points = list(attempts.points.values())
        largest = min(largest, probe_worker.max_batch or largest)
        if _may_end_on_plateau(attempts):
            on_plateau = _predicted_plateau(points, factor, _long_s(attempts))
            largest = min(largest, on_plateau)
        left_s = curve_left_s(points, largest, attempts.rule, factor=factor)
        probe_worker.report_left(left_s, planned_step_s(points))


def _predicted_plateau(points: list[CurvePoint], factor: int, long_s: float) -> int:
    """The batch at which exploring will end on a plateau, if memory lets it go so far."""
    size = max(point.batch for point in points)
    if len(points) > 1:
        line = fit_line([(point.batch, point.step_time_s.median) for point in points])
        while size < _LARGEST and not _pays_no_more(line, size, long_s):
            size *= factor
        return size
    return _LARGEST


def search_limit(attempts: Attempts, explored: Explored) -> Limit:
    """The largest batch that trains and the smallest that does not, both of them tried.

    On a plateau nothing more is tried: the largest batch that was explored fits, and none fails.
    """
    if explored.plateau is not None:
        return Limit(explored.max_batch, None, ())
    probe_worker = attempts.probe_worker
    memory_bytes = probe_worker.usable_bytes
    ran = peaks_by_batch(attempts.points.values())
    if attempts.points and not ran:
        # Without peaks memory predicts nothing: it only counts which batches ran. 0 stands for
        # unknown.
        memory_bytes = None
        ran = [(batch, 0) for batch in attempts.points]
    return find_limit(
        partial(_trial, attempts),
        ran,
        memory_bytes=memory_bytes,
        max_batch=explored.max_batch,
        multiple=probe_worker.request.batch_multiple,
        failed=explored.failed,
        why_max=_why_max(probe_worker),
        within=_limit_within(attempts),
        is_enough=lambda: plateau_of(attempts) is not None,
    )


def _limit_within(attempts: Attempts) -> float:
    """How far apart the largest batch that fits and the smallest that fails may be, a fraction.

    With 0 they are neighbours. `find_limit` uses it only after four tries without these.
    """
    if attempts.probe_worker.request.find_limit:
        return 0.0
    longest_s = max(
        (one.step_time_s.median for one in attempts.points.values()), default=0.0
    )
    is_enough = attempts.probe_worker.request.for_split or longest_s > _LONG_S
    return _CLOSE if is_enough else 0.0


def _why_max(probe_worker: ProbeWorker) -> str:
    """Why no larger batch than the largest is tried."""
    asked_for = probe_worker.request.max_batch
    if probe_worker.max_batch is None or probe_worker.max_batch == asked_for:
        multiple = probe_worker.request.batch_multiple
        if asked_for and asked_for > multiple and asked_for % multiple:
            return f"the largest multiple of {multiple} up to the requested {asked_for}"
        return ASKED_FOR
    return f"the data has {probe_worker.max_batch} samples"


def _trial(attempts: Attempts, batch: int, reason: str) -> TriedBatch:
    precision = attempts.precision(batch, batch)
    attempt = attempts.try_batch(batch, reason, within=precision, for_limit=True)
    return TriedBatch(batch, attempt.trains, attempt.trial.memory_peak_bytes)


def _expected_largest(probe_worker: ProbeWorker) -> float:
    """What the largest batch will be, as far as is known: points far below it may be less exact.

    That is what was asked for, or the data's number of samples. Else it is infinite if memory sets
    it, or before a worker has reported the memory; 0 if the memory is unknown, as then each point
    may be the largest.
    """
    if probe_worker.max_batch:
        return probe_worker.max_batch
    if probe_worker.facts is None or probe_worker.usable_bytes is not None:
        return math.inf
    return 0.0


def _predicted(attempts: Attempts) -> int | None:
    """The largest batch that fits by a line through the points' memory; None without a line."""
    usable_bytes = attempts.probe_worker.usable_bytes
    peaks = peaks_by_batch(attempts.points.values())
    if not usable_bytes or len(peaks) < _POINTS_FOR_A_LINE:
        return None
    return predict_limit(peaks, usable_bytes)


def _is_enough(attempts: Attempts, size: int) -> bool:
    """Whether the curve is known well enough without that size."""
    predicted = _predicted(attempts)
    if predicted is not None:
        return 2 * size > predicted
    probe_worker = attempts.probe_worker
    if probe_worker.max_batch is not None or len(attempts.points) < _POINTS_FOR_A_LINE:
        return False
    if size > _LARGEST_UNASKED:
        return True
    return probe_worker.usable_bytes is None and _last_octave_is_flat(attempts)


def _last_octave_is_flat(attempts: Attempts) -> bool:
    """Whether the largest batch gives hardly more samples/s than the one before, half as large."""
    before, last = sorted(attempts.points)[-2:]
    rate_before = attempts.points[before].throughput.median
    return attempts.points[last].throughput.median < (1 + _PLATEAU) * rate_before
