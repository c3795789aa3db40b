import itertools
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.devices.telemetry import Counters, TelemetryRecorder
from gpubalance.results.timing import Moment, Telemetry, throttling
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

CLOCKS: Any = {"sm_clock_mhz": 1900, "memory_clock_mhz": 5005}
CALM = Moment(at_s=0.0, temperature_c=60, power_w=100.0, **CLOCKS, throttle_reasons=())


def at(
    seconds: float, energy_mj: int | None = None, ecc: int | None = None
) -> Counters:
    return Counters(at_s=seconds, energy_mj=energy_mj, ecc_uncorrected=ecc)


def reads(course: TelemetryRecorder, counters: Counters, **other: object) -> None:
    """Adds a calm reading, or one with other gauges."""
    course.count(counters)
    course.gauge(altered(CALM, at_s=counters.at_s, **other))


def told(*readings: dict[str, object], first: Counters, last: Counters) -> Telemetry:
    """The telemetry of readings a second apart, with the given counters at both ends."""
    course = TelemetryRecorder()
    for number, other in enumerate(readings):
        reads(course, first if number == 0 else at(first.at_s + number), **other)
    course.count(last)
    return known(course.telemetry())


def test_without_a_reading_there_is_no_telemetry() -> None:
    course = TelemetryRecorder()
    course.count(at(0.0, 5, 0))
    course.count(at(1.0, 9, 0))
    assert course.telemetry() is None


PARTS = st.lists(
    st.tuples(st.floats(0.001, 100.0), st.integers(0, 700_000)), min_size=1, max_size=20
)


@given(PARTS)
def test_the_energy_is_the_sum_of_each_power_times_how_long_it_was_taken(
    parts: list[tuple[float, int]],
) -> None:
    course = TelemetryRecorder()
    time = 1000.0
    joules = 0.0
    for gap_s, power_mw in parts:
        reads(course, at(time), power_w=power_mw / 1000)
        time += gap_s
        joules += gap_s * power_mw / 1000
    course.count(at(time))
    found = known(course.telemetry()).energy_j or 0.0
    assert found == pytest.approx(joules, abs=0.001, rel=1e-9)


def test_a_power_holds_until_the_next_that_is_told() -> None:
    untold: dict[str, object] = {"power_w": None}
    telemetry = told({}, untold, untold, first=at(0.0), last=at(4.0))
    figures = (telemetry.energy_j, telemetry.power_w, telemetry.duration_s)
    assert figures == (400.0, 100.0, 4.0)
    assert told(untold, first=at(0.0), last=at(1.0)).samples_per_joule(1000.0) is None


@cases(
    "counted, energy_j",
    ((5, 5), 200.0),
    ((5, 4), 200.0),
    ((None, 5), 200.0),
    ((5, None), 200.0),
    ((5_000, 185_500), 180.5),
)
def test_the_gpu_s_own_counter_comes_first_if_it_tells_anything(
    counted: tuple[int | None, int | None], energy_j: float
) -> None:
    telemetry = told({}, first=at(0.0, counted[0]), last=at(2.0, counted[1]))
    assert telemetry.energy_j == energy_j
    assert telemetry.samples_per_joule(1000.0) == 1000.0 * 2.0 / energy_j


@cases("counted, rise", ((3, 3), 0), ((3, 5), 2), ((3, 0), None), ((None, 3), None))
def test_uncorrected_errors(
    counted: tuple[int | None, int | None], rise: int | None
) -> None:
    before, after = counted
    telemetry = told({}, first=at(0.0, ecc=before), last=at(1.0, ecc=after))
    assert telemetry.ecc_uncorrected == rise


def test_what_was_counted_once_has_not_risen_nor_stayed() -> None:
    course = TelemetryRecorder()
    reads(course, at(0.0, 5_000, 0))
    gauges: Any = {"temperature_c": 60, "power_w": 100.0, **CLOCKS}
    once: Any = {"readings": 1, "duration_s": 0.0, "course": (CALM,)}
    assert course.telemetry() == Telemetry(**gauges, **once, throttle_reasons=())


@given(st.integers(1, 5000))
def test_a_course_is_told_by_some_hundreds_of_readings(readings: int) -> None:
    """A course of any length is told by some hundreds of readings evenly apart."""
    course = TelemetryRecorder()
    for number in range(readings):
        reads(course, at(float(number)))
    times = [moment.at_s for moment in known(course.telemetry()).course]
    assert min(readings, 240) <= len(times) <= 480
    assert len({b - a for a, b in itertools.pairwise(times)}) <= 1
    assert times[0] == 0.0
    assert readings - times[-1] <= readings / 120 + 1


def test_the_hottest_the_middle_clock_and_the_mean_power() -> None:
    hot: Any = {"temperature_c": 91, "power_w": 250.0, "sm_clock_mhz": 1200}
    hot["throttle_reasons"] = ("thermal",)
    slow: Any = {"temperature_c": 85, "sm_clock_mhz": 1850, "memory_clock_mhz": 810}
    slow["throttle_reasons"] = ("power cap",)
    telemetry = told({}, hot, slow, first=at(0.0), last=at(3.0))
    figures = (telemetry.temperature_c, telemetry.power_w, telemetry.energy_j)
    assert figures == (91, 150.0, 450.0)
    assert (telemetry.sm_clock_mhz, telemetry.memory_clock_mhz) == (1850, 5005)
    assert telemetry.throttle_reasons == ("power cap", "thermal")


def test_every_reason_that_pynvml_knows_has_a_name() -> None:
    named = throttling([pynvml.nvmlClocksThrottleReasonAll])
    assert not [name for name in named if name.startswith("reason")]
