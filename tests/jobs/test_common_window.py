"""What counts of timings that several workers give at once.

Nothing counts of the time in which one of them did not measure.
"""

from __future__ import annotations

import math

from gpubalance.jobs.measure.measurer import CommonWindow
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.results.timing import Timing
from gpubalance.settings.measuring import Measuring


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
