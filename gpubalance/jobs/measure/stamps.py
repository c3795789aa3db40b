"""What stamped steps say: how long a step waits for data, which are slow, what stamping costs.

They are apart from other timings, as stamping costs a little. The engine takes the stamps, in
engine/step/points.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubalance.jobs.measure.figures import (
    Windows,
    are_unlike,
    input_wait_s,
    stamped_in,
    step_times_s,
    timings_in,
    usual_s,
)
from gpubalance.numbers.stats import mean, median, part95
from gpubalance.planning.parts import slow_steps, slow_time
from gpubalance.results.run import SlowSteps, StepSpread


def averaging(windows: Windows) -> Callable[[Sequence[float]], float]:
    """What makes one number of single steps: the median, or the mean if batches differ in shape.

    A timing is the mean of several such steps.
    """
    return mean if are_unlike(windows) else median


def input_waits_s(windows: Windows) -> list[float]:
    """How long each stamped step waits for data.

    While the host waits, a GPU may still compute the step before. So what a stamped step and the
    host's wait take longer than a usual step is no wait.
    """
    steps = stamped_in(windows)
    sums_s = [(step.step_s or 0.0) + step.input_wait_s for step in steps]
    over_s = 0.0
    if sums_s and timings_in(windows):
        over_s = max(0.0, averaging(windows)(sums_s) - usual_s(windows))
    return [max(0.0, step.input_wait_s - over_s) for step in steps]


def single_steps_s(windows: Windows) -> list[float]:
    """How long each stamped step takes, its wait for data included."""
    waits_s = input_waits_s(windows)
    steps = zip(stamped_in(windows), waits_s, strict=True)
    return [(step.step_s or 0.0) + wait_s for step, wait_s in steps]


def rare_waits_s(windows: Windows) -> float:
    """What a step waits on average for data that seldom comes late.

    The median stamped step does not wait for it.
    """
    if are_unlike(windows) or not timings_in(windows):
        return 0.0
    over_s = usual_s(windows) - median(single_steps_s(windows))
    return max(0.0, min(over_s, input_wait_s(windows) - median(input_waits_s(windows))))


def slow_step_count(windows: Windows) -> int:
    """How many stamped steps take over 1.5 times their median; 0 if batches differ in shape."""
    return 0 if are_unlike(windows) else slow_steps(single_steps_s(windows))


def slow_steps_in(windows: Windows) -> SlowSteps:
    """The slow ones among the stamped steps."""
    return SlowSteps(count=slow_step_count(windows), timed=len(stamped_in(windows)))


def slow_s(windows: Windows) -> float:
    """What rare slow steps add to the step time, without their waits for data."""
    if are_unlike(windows):
        return 0.0
    rare_s = rare_waits_s(windows)
    times_s = [time_s - rare_s for time_s in step_times_s(windows)]
    steps = max(timing.steps for timing in timings_in(windows))
    return slow_time(times_s, steps, single_steps_s(windows))


def stamp_cost(windows: Windows) -> float | None:
    """The part by which a usual stamped step takes longer than another; None without both."""
    if not timings_in(windows) or not stamped_in(windows):
        return None
    usual_step_s = usual_s(windows) - slow_s(windows) - rare_waits_s(windows)
    return averaging(windows)(single_steps_s(windows)) / usual_step_s - 1


def step_spread(windows: Windows) -> StepSpread | None:
    """How steps differ because their batches differ in shape; None if they do not."""
    times = single_steps_s(windows)
    if not are_unlike(windows) or len(times) < 2:
        return None
    # The host's work between steps, which stamps do not see, is about the same in all of them.
    rest_s = max(0.0, usual_s(windows) - mean(times))
    half_s = median(times) + rest_s
    most_s = part95(times) + rest_s
    return StepSpread(p50_s=half_s, p95_s=most_s, steps=len(times))
