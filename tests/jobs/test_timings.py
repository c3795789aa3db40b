"""What a step's parts are, what is said of timings that are unlike, and what windows amount to."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from gpubalance.jobs.measure import figures, stamps
from gpubalance.jobs.measure.warnings import of_figures
from gpubalance.jobs.measure.window import Window
from gpubalance.results.timing import Timing
from gpubalance.settings.settings import Settings
from tests.jobs.drawn import measured, windows_of

COMPUTE_S, DATA_S = 0.10, 0.13  # data comes every 0.13 s
SINGLES, MEAN = [0.04] * 9 + [0.14], 0.05  # of ten batches one is long


def of_waits(
    host_waits_s: float, *stamped_waits_s: float, slow: float = 1.0
) -> list[Window]:
    """Six timings and ten stamped steps.

    The first of the stamped steps wait otherwise, and the first timing is `slow` times as slow.
    """
    timings = [
        Timing(steps=5, seconds=5 * DATA_S * factor, input_wait_s=5 * host_waits_s)
        for factor in (slow, *[1.0] * 5)
    ]
    stamps = {
        "compute_s": (COMPUTE_S,) * 2,
        "update_s": (0.0,) * 2,
        "step_s": COMPUTE_S,
    }
    waits_s = chain(stamped_waits_s, repeat(host_waits_s))
    stamped = [
        Timing(steps=1, seconds=COMPUTE_S, input_wait_s=next(waits_s), **stamps)
        for _ in range(10)
    ]
    return windows_of(timings, stamped)


@pytest.mark.parametrize(
    "waits_s",
    [(DATA_S - COMPUTE_S,), (DATA_S,), (DATA_S - COMPUTE_S, *[0.0] * 10)],
    ids=[
        "for the device too",
        "beside a GPU",
        "seldom: each fifth step, and no stamped one",
    ],
)
def test_the_parts_make_up_the_step_whoever_waits(
    waits_s: tuple[float, ...],
) -> None:
    """The parts make up the step whether or not the host waits for the device."""
    windows = of_waits(*waits_s)
    found = measured(windows)
    assert found.input_wait_s == pytest.approx(DATA_S - COMPUTE_S)
    assert stamps.stamp_cost(windows) == pytest.approx(0)
    assert (found.sync_s, found.excess_s, found.slow_s) == pytest.approx((0, 0, 0))


def test_a_step_whose_data_comes_late_is_a_slow_step() -> None:
    """A step whose data comes late is a slow step and a few much longer timings are told."""
    windows = of_waits(DATA_S, 4 * DATA_S)
    assert (stamps.slow_step_count(windows), figures.mean_over_median(windows)) == (
        1,
        0,
    )
    windows = of_waits(DATA_S, slow=10 / 5)
    assert figures.mean_over_median(windows) == pytest.approx(1 / 6)
    (warning,) = [
        figure
        for figure in of_figures(Settings(model="small"), (), [windows])
        if figure.code == "slow-steps"
    ]
    assert "on average a step takes 16.7 % longer than shown" in warning.message


@pytest.mark.parametrize("unlike", [True, False])
def test_only_of_batches_that_differ_steps_make_a_distribution(
    unlike: bool,
) -> None:
    """Only of batches that differ steps make a distribution and none is slow."""
    whole = [
        Timing(steps=10, seconds=10 * MEAN, input_wait_s=0.0, unlike=unlike)
        for _ in range(6)
    ]
    alone = [
        Timing(
            steps=1,
            seconds=s,
            input_wait_s=0.0,
            compute_s=(s,),
            update_s=(0.0,),
            step_s=s,
            unlike=unlike,
        )
        for s in SINGLES
    ]
    windows = windows_of(whole, alone, devices=1)
    found = measured(windows)
    if not unlike:
        assert (found.step_spread, stamps.slow_step_count(windows)) == (None, 1)
        assert stamps.slow_s(windows) > 0
        return
    assert found.step_spread is not None
    assert (found.step_spread.p50_s, found.step_spread.steps) == (0.04, 10)
    assert 0.04 < found.step_spread.p95_s <= 0.14
    assert (found.step_time_s.median, found.replicas[0].compute_s, found.slow_s) == (
        MEAN,
        MEAN,
        0.0,
    )
    assert stamps.stamp_cost(windows) == pytest.approx(0, abs=1e-9)


def test_windows_that_were_throttled_stay_so() -> None:
    whole = [Timing(steps=5, seconds=5 * DATA_S, input_wait_s=0.0)]
    told = (((None, 5), ("sw-thermal",), 0.25), ((7, 3), ("hw-power-brake",), 0.75))
    windows: list[Window] = []
    for peaks, reasons, late in told:
        windows += windows_of(
            whole, memory_peak_bytes=peaks, throttled=(reasons, ()), late_part=late
        )
    assert figures.throttled(windows) == [("sw-thermal", "hw-power-brake"), ()]
    assert figures.peaks(windows) == (7, 5)
    assert (figures.late_part(windows), len(figures.timings_in(windows))) == (0.5, 2)
