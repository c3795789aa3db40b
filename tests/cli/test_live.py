"""The live screen in unlike terminals, with the program's own Progress and made-up events."""

from __future__ import annotations

import re
import sys
import time
from functools import cache
from typing import Any

import pytest

from gpubalance.cli.live import DoingNow, Remaining
from gpubalance.cli.progress import Progress
from gpubalance.errors import RESUME, TimeLimitPassed
from gpubalance.jobs.events import Doing, PhaseBegun, Starting, TimeLeft, TimingDone
from gpubalance.numbers.units import DurationRange
from tests.cli.program import ROOT, one_line
from tests.cli.terminal import Seen, command_in_terminal
from tests.support.cases import cases

SCRIPT = f"""
import time
from gpubalance.cli.progress import Progress
from gpubalance.devices.machine import find_machine
from gpubalance.jobs.events import Doing, PhaseBegun, TimingDone, WindowDone
from gpubalance.numbers.units import DurationRange
from gpubalance.results.common import StepTime, Throughput
from gpubalance.results.independent import OwnWindow
from gpubalance.results.timing import Moment

devices = find_machine({str(ROOT / "configs" / "four-unlike.toml")!r}).devices
hot = Moment(
    at_s=0, temperature_c=83, power_w=220, sm_clock_mhz=1500, memory_clock_mhz=5000, throttle_reasons=("power cap",)
)

def joint(watch):
    watch(Doing("going on with what was measured", stays=True))
    watch(Doing("measuring 120/80/40/30, window 1 of 3, interleaved with the even split"))
    watch(PhaseBegun("proof", 4, 4, DurationRange.about(75.0)))
    for name, batches, step_s in (("even", (68, 68, 67, 67), 0.08), ("", (120, 80, 40, 30), 0.065)):
        stamps = (0.060, 0.059, 0.061, 0.040), (0.001,) * 4
        watch(TimingDone(name, devices, batches, step_s, *stamps, (hot, None, None, None)))
        for number in range(40):
            watch(TimingDone(name, devices, batches, step_s * (1 + number / 400), None, None, (hot, None, None, None)))
    watch(TimingDone("even", devices, (68, 68, 67, 67), 0.08, None, None, (hot, None, None, None)))

def own(watch):
    watch(Doing("measuring all 4 devices at once, window 1 of 3"))
    watch(PhaseBegun("independent", 1, 1, DurationRange.about(75.0)))
    for name, step_s in (("alone", 0.05), ("at once", 0.06)):
        for device, batch in zip(devices, (120, 80, 40, 30)):
            watch(TimingDone(name, (device,), (batch,), step_s, None, None, (hot if device.index == 0 else None,)))
    times = StepTime(median=0.06, mad=0.0, ci95=None, steps_per_sample=1, samples=(0.06,), at_s=(0.06,))
    rate = Throughput(median=2000.0, ci95=None)
    gave = dict(batch=120, step_time_s=times, throughput=rate, memory_peak_bytes=3 << 30, telemetry=None)
    watch(WindowDone(1, 3, "at once", devices[:1], (OwnWindow(device=devices[0], **gave),)))

with Progress(quiet=QUIET) as tell:
    WORK(tell)
    time.sleep(1.2)
print("the result")
"""
TEN_MINUTES = DurationRange.about(600.0)
KEPT = "… going on with what was measured"


@cache
def shown(
    columns: int, work: str = "joint", quiet: bool = False, **environment: str
) -> Seen:
    code = SCRIPT.replace("QUIET", str(quiet)).replace("WORK", work)
    status, seen = command_in_terminal(
        [sys.executable, "-c", code], columns, environment=environment
    )
    assert status == 0, seen.written.decode()
    return seen


@cases("columns", 40, 80, 120)
def test_the_screen_is_whole_in_any_width_and_goes_at_the_end(columns: int) -> None:
    seen = shown(columns)
    whole = []
    for picture in seen.pictures:
        if any(line.startswith("█ compute") for line in picture):
            whole.append(picture)
    assert whole, seen.written.decode()
    lines = [line for line in whole[-1] if line]
    rows = [line for line in lines if re.match(r"GPU:\d  ", line)]
    # A line each, none wrapped: the batch is there, and the bar of what it computes and waits.
    assert [row.split()[0] for row in rows] == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    for row, batch in zip(rows, (120, 80, 40, 30), strict=True):
        assert re.search(rf"\b{batch}\b.*█", row)
    assert "░" in rows[3]
    text = one_line(" ".join(lines))
    assert "GPU:3 waits 21.0 ms of each step for GPU:2" in text
    assert "GPU:0 is throttled: power cap" in text
    assert re.search(r"phase 4 of 4, about 7\d s of 7\d s left", text)
    assert re.search(r"total 270 +\d+ samples/s", text)
    assert re.search(r"even split 68/68/67/67 +\d+ samples/s", text)
    assert ("83 °C 220 W" in text) == (columns >= 80)
    assert [line for line in seen.pictures[-1] if line] == [KEPT, "the result"]


def test_no_color_has_none_and_moves_the_cursor_only() -> None:
    plain = shown(80, NO_COLOR="1").written
    coloured = shown(80).written
    colours = re.compile(rb"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    assert colours.search(coloured)
    assert not colours.search(plain)
    assert b"\x1b[" in plain


def test_a_dumb_terminal_gets_plain_lines_of_its_width() -> None:
    seen = shown(40, TERM="dumb")
    assert b"\x1b" not in seen.written
    lines = seen.written.decode().splitlines()
    assert lines == [
        KEPT,
        "… measuring 120/80/40/30, window 1 of 3,",
        "  interleaved with the even split",
        "… phase 4 of 4, proof: about 75 s of 75",
        "  s left",
        "the result",
    ]


def test_quiet_shows_nothing() -> None:
    assert shown(80, quiet=True).written.decode().splitlines() == ["the result"]


@cases("columns", 40, 80)
def test_devices_with_own_models_stand_alone_beside_at_once(columns: int) -> None:
    """Devices with models of their own stand alone and at once beside each other."""
    seen = shown(columns, "own")
    # What was read of the terminal may end within a picture: a whole one has the last device too.
    whole = []
    for picture in seen.pictures:
        text = "\n".join(picture)
        if "3.00 GiB" in text and "GPU:3" in text:
            whole.append(picture)
    assert whole, seen.written.decode()
    text = one_line(" ".join(whole[-1]))
    assert re.search(r"GPU:0 .*\b120 +2400 +2000 +3\.00 GiB", text)
    assert re.search(r"GPU:3 .*\b30 +600 +500\b", text)
    assert "GPU:0 is throttled: power cap" in text
    assert ("83 °C 220 W" in text) == (columns >= 80)
    assert "at once 4500 samples/s" in text
    assert [line for line in seen.pictures[-1] if line] == ["the result"]


def test_where_no_screen_counts_down_lines_say_what_is_still_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress(quiet=False, every_s=0.01) as report:
        report(Doing("measuring GPU:0 alone"))
        time.sleep(0.1)
        # As in a queue, which may take a night
        assert "still" not in capsys.readouterr().err
        report(PhaseBegun("GPU:0 alone", 1, 3, TEN_MINUTES, TEN_MINUTES))
        late = "taking over twice the estimated 1 min: about 20 min more"
        report(Doing(late, stays=True))
        printed: Any = sys.stderr
        while printed.getvalue().count("\n") < 6:
            time.sleep(0.01)
    said = capsys.readouterr().err  # it loses what is printed meanwhile
    still = [line for line in said.splitlines() if line.startswith("… still")]
    # What has not changed is said once
    first = "… still measuring GPU:0 alone; phase 1 of 3, about 20 min of 20 min left"
    assert still[:3] == [first, *["… still measuring GPU:0 alone"] * 2]


def test_a_proposed_time_limit_leaves_what_resumes_a_balances_probe() -> None:
    """The probe's journal has said it before, and the balance's own has nothing yet."""
    error = TimeLimitPassed(5.0)
    error.remedy += f"\n{RESUME}"
    report = Progress(quiet=True)
    report(PhaseBegun("GPU:0 alone", 1, 3, TEN_MINUTES, TEN_MINUTES))
    with pytest.raises(TimeLimitPassed), report:
        raise error
    enough = "all of it takes about 20 min: --time-limit 1800"
    assert error.remedy.splitlines() == [enough, RESUME]


def test_devices_that_train_are_no_longer_said_to_start() -> None:
    """What was said before is, unless something was said since."""
    now = DoingNow()
    timing = TimingDone("", (), (20, 12), 8.0, None, None, ())
    for event, text in (
        (Doing("round 1: 20/12"), "round 1: 20/12"),
        (Starting("starting TensorFlow on GPU:0"), "starting TensorFlow on GPU:0"),
        (Starting("starting TensorFlow on GPU:1"), "starting TensorFlow on GPU:1"),
        (timing, "round 1: 20/12"),
        (timing, "round 1: 20/12"),
        (Starting("starting TensorFlow"), "starting TensorFlow"),
        (Doing("measuring 20/12"), "measuring 20/12"),
        (timing, "measuring 20/12"),
    ):
        now.take(event)
        assert now.text == text


def test_what_is_left_counts_down_and_no_time_is_told_of_an_overdue_phase() -> None:
    remaining = Remaining()
    assert (remaining.short, remaining.whole_s) == ("", 0.0)
    remaining.take(PhaseBegun("GPU:0 alone", 1, 3, TEN_MINUTES, TEN_MINUTES))
    first = "phase 1 of 3, GPU:0 alone: about 10 min; about 20 min in all"
    assert remaining.line == first
    fifteen_minutes = DurationRange.about(900.0)
    remaining.take(TimeLeft(DurationRange(1500.0, 1800.0), fifteen_minutes))
    assert remaining.short == "phase 1 of 3, about 25 to 30 min of 30 min left"
    later = DurationRange(900.0, 1200.0)
    # It takes longer than was thought, and what later phases may take does not hide it.
    remaining.take(TimeLeft(later, later))
    assert remaining.short == "phase 1 of 3, longer than expected"
    assert round(remaining.whole_s) == 1200
    remaining.take(
        PhaseBegun("rounds", 2, 3, DurationRange(60, 80), DurationRange(30, 40))
    )
    left = "about 60 to 80 s; about 90 s to 2 min of 2 min left"
    assert remaining.line == f"phase 2 of 3, rounds: {left}"
    remaining.take(PhaseBegun("proof", 3, 3))
    assert remaining.short == "phase 3 of 3"
