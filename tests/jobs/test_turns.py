"""How many windows are measured, in which order, and what is told of them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from gpubalance.jobs.events import Doing, Event, PipeWindowDone, TimeLeft, WindowDone
from gpubalance.jobs.measure.joint import (
    ExpectedRun,
    InterleavedWindows,
    expected_run,
)
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import MeasuredTogether, Window, Workload
from gpubalance.jobs.measure.workload_runner import WarmUp
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring, Proof
from gpubalance.workers.messages import Pipe
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import nothing_kept, windows_of
from tests.jobs.probes import QUICK, devices_of
from tests.support.cases import cases

PAIR = devices_of(QUICK, QUICK)
OWN = Workload(BatchSplit((30, 10)), PAIR)
EVEN = Workload(BatchSplit((20, 20)), PAIR, "even", is_baseline=True)


def window(
    spread: float = 0.0, step_s: float = 0.1, devices: int = 2, **more: Any
) -> Window:
    """Five timings of two steps, of which a few are longer or shorter by that part."""
    factors = (1.0, 1 + spread, 1 - spread, 1 + spread / 2, 1 - spread / 2)
    timings = []
    for factor in factors:
        seconds = 2 * step_s * factor
        timings.append(Timing(steps=2, seconds=seconds, ended_s=9.0, input_wait_s=0.0))
    stamps: Any = {"compute_s": (0.05,) * devices, "update_s": (0.0,) * devices}
    stamps |= {"seconds": 0.1, "ended_s": 8.0, "input_wait_s": 0.0, "step_s": step_s}
    stamped = Timing(steps=1, **stamps)
    return windows_of(timings, [stamped], devices, **more)[0]


class Scripted(Measurer):
    """Takes each workload's windows from a list, the last one again and again."""

    window_s = 1.1

    def __init__(self, windows: dict[Workload, Sequence[Window]]) -> None:
        self.events: list[Event] = []
        super().__init__(cast("WorkerGroup", None), nothing_kept(), self.events.append)
        self._script = windows
        self.taken: list[str] = []
        self.rules: set[StoppingRule] = set()

    def measure_kept(
        self,
        turn: MeasuredTogether,
        rule: StoppingRule,
        number: int = 1,
        doing: str = "",
    ) -> None:
        self.rules.add(rule)
        self.taken.append(doing)
        self.took_s[turn] = self.window_s
        for workload in turn:
            windows = self._script[workload]
            self.windows[workload].append(windows[min(number, len(windows)) - 1])

    def warm_up_of(self, workload: Workload) -> WarmUp:
        return WarmUp(step_s=0.1 if workload.is_baseline else 0.3)

    @property
    def told(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Doing)]


def measured(
    windows: dict[Workload, Sequence[Window]], measuring: Measuring | None = None
) -> Scripted:
    measurer = Scripted(windows)
    turns: list[MeasuredTogether] = [(workload,) for workload in windows]
    how = measuring or Measuring()
    InterleavedWindows(
        measurer, turns, how, lambda window, what: f"{what}: {window}"
    ).measure()
    return measurer


LEVEL = window()
KNOWN = "known within ± 1 % (95 %)"


def test_turns_alternate_in_going_first_until_all_are_known() -> None:
    found = measured({OWN: [LEVEL], EVEN: [LEVEL]})
    names = ["", "even", "even", "", "", "even"]
    windows = zip(names, (1, 1, 2, 2, 3, 3), strict=True)
    of = [f"GPU:0 and GPU:1 {name}: window {number} of 3" for name, number in windows]
    assert found.taken == of
    assert found.told == [f"{KNOWN} after 3 measurement windows"]
    assert found.rules == {StoppingRule.of_window(Measuring())}
    done: list[Any] = [one for one in found.events if isinstance(one, WindowDone)]
    told = [(event.name, event.number, event.of) for event in done[:3]]
    assert told == [("", 1, 3), ("even", 1, 3), ("even", 2, 3)]
    assert done[0].measured.batches == (30, 10)
    assert done[0].measured.throughput.median == pytest.approx(400)


@cases(
    "spread, windows, count, more",
    (0.0, 3, 3, 0),
    # Known within ± 1 % after the fourth
    (0.02, 3, 4, 1),
    (0.03, 3, 5, 2),
    # Not even within 6 % after all of them
    (0.5, 3, 3, 0),
    (0.03, 1, 2, 1),
)
def test_more_windows_follow(
    spread: float, windows: int, count: int, more: int
) -> None:
    found = measured({OWN: [window(spread)]}, Measuring(windows=windows))
    assert len(found.windows[OWN]) == count
    assert found.told[:more] == [f"not yet {KNOWN}: one more window"] * more
    is_told = f"{KNOWN} after {count} measurement windows" in found.told
    assert is_told == (spread < 0.03)
    for number, text in enumerate(found.taken, 1):
        of = f" of {windows}"
        if number > windows:
            of = f", beyond the planned {windows}"
        assert text == f"GPU:0 and GPU:1 : window {number}{of}"


def test_what_is_left_is_as_long_as_the_last_windows() -> None:
    """One takes 1.1 s; the first, by its warm-up, seven steps of 0.3 s."""
    found = measured({OWN: [window(0.02)]})  # four windows
    told = [one for one in found.events if isinstance(one, TimeLeft)]
    # Two may follow the planned three; after four no other does.
    least_s = [one.duration.least_s for one in told[::2]]
    assert least_s == pytest.approx([6.3, 2.2, 1.1, 1.1])
    most_s = [one.duration.most_s for one in told]
    assert most_s == pytest.approx([10.5, 4.4, 4.4, 3.3, 3.3, 2.2, 2.2])


def test_no_window_of_a_long_proof_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer than half a minute."""
    assert len(measured({OWN: [window(0.02)]}, Proof(windows=3)).windows[OWN]) == 4
    monkeypatch.setattr(Scripted, "window_s", 10.1)
    assert len(measured({OWN: [window(0.02)]}, Proof(windows=3)).windows[OWN]) == 3


def test_how_long_a_run_takes_is_expected_by_its_noise() -> None:
    """A step takes 0.8 s; two of a window are stamped."""
    expected = partial(expected_run, Measuring(windows=2), 0.8, splits=1)
    # The fewest timings; beside another split three to six steps more, and three that settle it
    both = expected(noise=0.01, splits=2)
    assert _seconds(both) == pytest.approx((2.4 + 4 * 8.0, 2.4 + 8 * 10.4, 8.0))
    nine = expected(noise=0.015)  # ± 0.5 %
    assert _seconds(nine) == pytest.approx((2 * 8.8, 4 * 8.8, 8.8))
    all_of_10_s = expected(noise=0.08)
    assert _seconds(all_of_10_s) == pytest.approx((23.2, 46.4, 11.6))
    # One window of a proof follows three, of 7.6 s each, within half a minute
    of_proof = expected_run(Proof(windows=3), 0.8, 0.08, splits=1)
    assert _seconds(of_proof) == pytest.approx((3 * 7.6, 4 * 7.6, 7.6))


def _seconds(expected: ExpectedRun) -> tuple[float, float, float]:
    """The fewest and the most of a run, and those of a window."""
    duration = expected.duration
    return duration.least_s, duration.most_s, expected.window_s


def test_of_a_given_length_there_are_as_many_as_asked_for_where_known() -> None:
    found = measured({OWN: [LEVEL]}, Measuring(windows=2, duration_s=1.0))
    assert len(found.windows[OWN]) == 2
    assert found.told == []


def test_one_more_follows_if_a_gpu_was_throttled_but_for_a_baseline() -> None:
    hot = window(throttled=((), ("sw-thermal",)))
    found = measured({OWN: [hot], EVEN: [LEVEL]})
    assert len(found.windows[OWN]) == len(found.windows[EVEN]) == 4
    once_more = "GPU:1 was throttled (sw-thermal): measuring once more"
    first, *last = [f"{KNOWN} after {count} measurement windows" for count in (3, 4)]
    assert found.told == [first, once_more, *last]
    found = measured({OWN: [LEVEL], EVEN: [hot]})
    assert len(found.windows[OWN]) == 3


def test_windows_from_before_count_and_the_first_ones_are_looked_at() -> None:
    looked: list[MeasuredTogether] = []
    measurer = Scripted({OWN: [LEVEL], EVEN: [LEVEL]})
    measurer.windows[OWN] += [LEVEL, LEVEL]
    turns: list[MeasuredTogether] = [(OWN,), (EVEN,)]
    once = Measuring(windows=1)
    InterleavedWindows(
        measurer, turns, once, lambda window, _: window, looked.append
    ).measure()
    # Two of its own are there already: of the other as many are asked for.
    assert measurer.taken == ["window 1 of 2", "window 2 of 2"]
    assert looked == [(EVEN,)]


def test_what_is_told_of_models_of_their_own_and_of_a_cut() -> None:
    alone = [
        Workload(BatchSplit((batch,)), (device,), name, group=device.index)
        for name, batch, device in (("at once", 8, PAIR[0]), ("at once", 4, PAIR[1]))
    ]
    one = window(devices=1, memory_peak_bytes=(77,))
    measurer = Scripted({workload: [one] for workload in alone})
    once = Measuring(windows=1)
    InterleavedWindows(measurer, [tuple(alone)], once, lambda _, what: what).measure()
    assert measurer.taken == ["all 2 devices at once"]
    done: Any = next(one for one in measurer.events if isinstance(one, WindowDone))
    assert (done.number, done.of, done.name) == (1, 1, "at once")
    for part, device, batch in zip(done.measured, PAIR, (8, 4), strict=True):
        assert (part.device, part.batch, part.memory_peak_bytes) == (device, batch, 77)
        assert part.throughput.median == pytest.approx(batch / 0.1)
        assert part.step_time_s.at_s[-1] == pytest.approx(9.0 - 7.9)
    single = Workload(BatchSplit((8,)), PAIR[:1], "alone")
    slower = window(step_s=0.2, devices=1)
    found = measured({single: [one, slower]}, Measuring(windows=2))
    assert found.taken[:2] == [f"GPU:0 alone: window {n} of 2" for n in (1, 2)]
    _, done = [event for event in found.events if isinstance(event, WindowDone)]
    assert done.name == "alone"
    assert done.measured[0].throughput.median == pytest.approx(8 / 0.2)  # of the last
    pipe = Pipe(segments=(), order=(), micro_batch=4, micro_batches=2)
    cut = Workload(BatchSplit((8,), (4,)), PAIR, "4 x", cut=pipe)
    found = measured({cut: [window(), window(step_s=0.2)]}, Measuring(windows=2))
    _, last = [one for one in found.events if isinstance(one, PipeWindowDone)]
    # Of both windows, whose step times are 0.1 and 0.2 s
    assert last[:2] == (2, 2)
    assert last[2:] == pytest.approx((8 / 0.15, 0.15))
