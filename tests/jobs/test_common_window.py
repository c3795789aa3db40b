"""What counts of timings that several workers give at once: nothing of when one of them did not measure."""

from __future__ import annotations

import math

from gpubalance.jobs.independent.window import CommonWindow
from gpubalance.jobs.measure.length import Length
from gpubalance.results.timing import Timing
from gpubalance.settings.requests import Measuring


def timing(seconds: float = 1.0) -> Timing:
    return Timing(steps=1, seconds=seconds, input_wait_s=0.0)


def test_a_timing_counts_only_where_it_began_and_ended_while_all_measured() -> None:
    window = CommonWindow([0, 1], Length.of_window(Measuring(duration_s=2.0)))
    early = [timing() for _ in range(5)]
    for one in early:
        window.take(0, one)  # the second has not given any yet
    window.take(1, timing())  # begins the window; when this one began is not known
    window.take(0, timing())  # began before the window did
    counted = {0: [timing(), timing()], 1: [timing(0.5), timing(1.5)]}
    for number in (0, 1, 0):
        window.take(number, counted[number][sum(one in window.counted[number] for one in counted[number])])
    assert not window.is_over()
    assert window.overlap_s == 0.0
    window.take(1, counted[1][1])
    assert window.is_over()
    assert window.overlap_s > 0
    window.take(0, timing())  # what a worker gave before it heard of the end
    assert {number: [id(one) for one in found] for number, found in window.counted.items()} == {
        number: [id(one) for one in wanted] for number, wanted in counted.items()
    }


def test_the_fast_one_goes_on_until_the_slow_one_has_enough() -> None:
    window = CommonWindow([0, 1], Length(0.0, 0.0, 0.25, math.inf, at_least=2))
    window.take(0, timing(0.01))
    window.take(1, timing(10.0))
    for _ in range(20):
        window.take(0, timing(0.01))
    window.take(1, timing(10.0))
    assert not window.is_over()
    window.take(1, timing(10.0))
    assert window.is_over()
    assert [len(window.counted[number]) for number in (0, 1)] == [19, 2]
