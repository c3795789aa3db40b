"""About how long a probe still takes: step times, times the steps that are left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gpubalance.jobs.events import TimeLeft, Watch
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.workload_runner import SETTLING_STEPS
from gpubalance.numbers.units import DurationRange
from gpubalance.planning.model import fit_line
from gpubalance.results.probe import CurvePoint

# The search for the limit, the sensible batch and the look at whether the device keeps its speed
# take about as long as so many points of the largest batch.
_MORE_POINTS = 2
# A batch that is less than this times as fast as a smaller one is not planned with.
_NEARLY = 1.03


class QueuesLeft:
    """Tells how long queues of devices, which are measured at the same time, take together.

    In one queue each device is a phase of its own, and is told of alone. Several are one phase,
    which ends with the last of them: it is told of once each queue has an estimate.
    """

    def __init__(
        self,
        queues: Sequence[Sequence[int]],
        probed: set[int],
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`queues` have numbers of devices in order, `probed` those that no equal one spares."""
        self._queues = [list(queue) for queue in queues]
        self._probed = probed
        self._watch = watch
        self._clock = clock
        self._began_s: dict[int, float] = {}
        self._until_s: dict[int, float] = {}  # by the number of the queue
        self._step_s = 0.0
        self._lock = threading.Lock()

    def begin(self, number: int) -> None:
        """A device begins to be measured."""
        with self._lock:
            self._began_s[number] = self._clock()

    def report(self, number: int, left_s: float, step_s: float) -> None:
        """A device needs about so many seconds more; steps of a plan take about `step_s`."""
        with self._lock:
            self._step_s = max(self._step_s, step_s)
            later = self._later(number)
            whole_s = self._clock() - self._began_s[number] + left_s
            self._note(number, left_s + later * whole_s)

    def end(self, number: int) -> None:
        """A device has been measured, or has failed."""
        with self._lock:
            if len(self._queues) > 1 and not self._later(number):
                self._note(number, 0.0)

    def _later(self, number: int) -> int:
        """How many devices of its queue come later in the same phase."""
        if len(self._queues) == 1:
            return 0
        queue = self._queues[self._queue_of(number)]
        return len(self._probed.intersection(queue[queue.index(number) + 1 :]))

    def _queue_of(self, number: int) -> int:
        return next(
            place for place, queue in enumerate(self._queues) if number in queue
        )

    def _note(self, number: int, left_s: float) -> None:
        now_s = self._clock()
        self._until_s[self._queue_of(number)] = now_s + left_s
        longest_s = max(self._until_s.values()) - now_s
        # With nothing left the phase would be called late, which is not over yet
        if len(self._until_s) == len(self._queues) and longest_s > 0:
            left = DurationRange.about(longest_s)
            self._watch(TimeLeft(left, step_s=self._step_s))


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
    return sum(point_s(points, size, rule) for size in sizes[1:])


def point_s(points: list[CurvePoint], size: int, rule: StoppingRule) -> float:
    """The seconds for a point of that size, by those there are: its warm-up and its timings."""
    last = max(points, key=lambda point: point.batch)
    step_s = last.step_time_s.median * size / last.batch
    if len(points) > 1:
        times = [(point.batch, point.step_time_s.median) for point in points]
        step_s = fit_line(times).step_time_s(size)
    # Timings of batches that differ in shape have several steps each
    cycle = last.step_time_s.steps_per_sample if last.unlike else 1
    return SETTLING_STEPS * cycle * step_s + rule.expected_s(step_s, cycle)


def planned_step_s(points: Sequence[CurvePoint]) -> float:
    """The step time of the smallest batch that gives nearly the highest throughput so far.

    A plan takes about such batches: those that are larger on a plateau would only take longer.
    """
    times_s = {point.batch: point.step_time_s.median for point in points}
    best = max(batch / step_s for batch, step_s in times_s.items())
    near = [batch for batch in times_s if batch / times_s[batch] >= best / _NEARLY]
    return times_s[min(near)]
