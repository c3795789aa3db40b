"""What counts of timings that several workers give at once.

Nothing counts of the time in which one of them did not measure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from gpubalance.jobs.measure.measurer import CommonWindow, Measurer
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Workload
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.workers.messages import Measured
from tests.jobs.drawn import nothing_kept, quiet, ready
from tests.jobs.probes import QUICK, devices_of


def timing(seconds: float) -> Timing:
    return Timing(steps=1, seconds=seconds, input_wait_s=0.0)


def test_a_timing_counts_only_where_it_began_and_ended_while_all_measured() -> None:
    window = CommonWindow([0, 1], StoppingRule.of_window(Measuring(duration_s=2.0)))
    for _ in range(5):
        window.add(0, timing(3.0))  # the second has not given any yet
    window.add(1, timing(3.0))  # begins the window; when this one began is not known
    window.add(0, timing(3.0))  # began before the window did
    for number, seconds in ((0, 1.0), (1, 0.5), (0, 1.1), (1, 1.5)):
        assert (window.is_over(), window.overlap_s) == (False, 0.0)
        window.add(number, timing(seconds))
    assert window.is_over()
    assert window.overlap_s > 0
    window.add(0, timing(3.0))  # what a worker gave before it heard of the end
    for number, counted in ((0, [1.0, 1.1]), (1, [0.5, 1.5])):
        assert [item.seconds for item in window.counted[number]] == counted


def test_the_fast_one_goes_on_until_the_slow_one_has_enough() -> None:
    window = CommonWindow([0, 1], StoppingRule(0.0, 0.0, 0.25, math.inf, at_least=2))
    window.add(0, timing(0.01))
    window.add(1, timing(10.0))
    for _ in range(20):
        window.add(0, timing(0.01))
    window.add(1, timing(10.0))
    assert not window.is_over()
    window.add(1, timing(10.0))
    assert window.is_over()
    assert [len(window.counted[number]) for number in (0, 1)] == [19, 2]


def test_what_was_measured_at_once_is_a_window_of_each() -> None:
    def replies(
        split: BatchSplit, until: Callable[[], bool], **_: Any
    ) -> Iterator[Timing | Measured]:
        while not until():
            time.sleep(0.001)  # so that the other one has its turn
            yield timing(0.5)
        yield Measured(memory_peak_bytes=split.batches, late_part=split.batches[0] / 10)

    class BusyWorker:
        measure = staticmethod(replies)

    def each(work: Callable[..., Any], among: Sequence[int]) -> dict[int, Any]:
        with ThreadPoolExecutor() as threads:
            answers = threads.map(lambda group: work(group, BusyWorker()), among)
            return dict(zip(among, answers, strict=True))

    worker_group: Any = SimpleNamespace(each=each, failures={})
    measurer = Measurer(worker_group, nothing_kept(), quiet)
    measurer.facts = {0: ready(1), 1: ready(1)}
    first, second = (
        Workload(BatchSplit((batch,)), (device,), "at once", group=device.index)
        for device, batch in zip(devices_of(QUICK, QUICK), (4, 8), strict=True)
    )
    measurer.measure_kept((first, second), StoppingRule(0.0, 9.0, 0.5, 0.01))
    found = [measurer.windows[one][0] for one in (first, second)]
    assert min(len(window.timings) for window in found) >= 5
    assert [window.memory_peak_bytes for window in found] == [(4,), (8,)]
    assert [window.late_part for window in found] == [0.4, 0.8]
