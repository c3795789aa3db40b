"""What an interrupted run or balance has finished is measured once: another process goes on with it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpubalance.config import BalanceRequest, Measuring, PlanRequest, RunRequest, Settings
from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import Interrupted
from gpubalance.results.run import Run
from gpubalance.stages.balance import balance
from gpubalance.stages.events import Doing, Event, RoundDone, Watch, WindowDone
from gpubalance.stages.fitting import Rig
from gpubalance.stages.journal import Journal
from gpubalance.stages.kept import Kept, balance_journal, run_journal
from gpubalance.stages.probe.saved import save
from gpubalance.stages.run import run_on
from tests.stages.drawn import DrawnWorker, noisy_devices
from tests.stages.probes import SMALL, probe_of

CONFIGS = Path(__file__).parents[2] / "configs"
DEVICES, JOINT = noisy_devices(CONFIGS / "quick-pair.toml", noise=0.0)


def request(**measuring: object) -> RunRequest:
    return RunRequest(
        devices=DEVICES,
        batches=(120, 80),
        settings=Settings(model="small"),
        joint=JOINT,
        measuring=Measuring(**{"windows": 3, "duration_s": 2.0, **measuring}),
    )


def drawn(journal: Journal | None, watch: Watch, asked: RunRequest, clock_s: float = 0.0) -> Run:
    worker = DrawnWorker(DEVICES, JOINT, seed=0, clock_s=clock_s)
    return run_on(cast("Rig", SimpleNamespace(worker=worker)), asked, None, watch, None, Kept(journal, watch))


def interrupted(at: Callable[[Event], bool]) -> Watch:
    def watch(event: Event) -> None:
        if at(event):
            raise KeyboardInterrupt

    return watch


def windows(heard: list[Event]) -> list[tuple[int, str]]:
    return [(event.number, event.name) for event in heard if isinstance(event, WindowDone)]


@pytest.mark.parametrize(
    ("last", "left"),
    [
        ((1, ""), [(1, "even"), (2, "even"), (2, ""), (3, ""), (3, "even")]),
        ((2, "even"), [(2, ""), (3, ""), (3, "even")]),
        ((3, "even"), []),
    ],
)
def test_a_run_goes_on_after_its_last_whole_window(last: tuple[int, str], left: list[tuple[int, str]]) -> None:
    asked = request()
    at = interrupted(lambda event: isinstance(event, WindowDone) and (event.number, event.name) == last)
    with pytest.raises(Interrupted) as ended, run_journal(asked, resume=False) as journal:
        drawn(journal, at, asked)
    first = ended.value.partial
    heard: list[Event] = []
    with run_journal(asked, resume=True) as journal:
        result = drawn(journal, heard.append, asked)
        path = journal.path
    assert windows(heard) == left
    assert result.complete
    assert result.step_time_s.samples[: len(first.step_time_s.samples)] == first.step_time_s.samples
    whole = drawn(None, list[Event]().append, asked)
    assert len(result.step_time_s.samples) == len(whole.step_time_s.samples)
    assert result.throughput.median == pytest.approx(whole.throughput.median)
    assert result.baselines.even is not None
    assert whole.baselines.even is not None
    assert len(result.baselines.even.step_time_s.samples) == len(whole.baselines.even.step_time_s.samples)
    assert "resumed" in {warning.code for warning in result.warnings}
    assert "resumed" not in {warning.code for warning in whole.warnings}
    assert not path.exists()  # what is in a result is kept no longer


def test_times_from_before_a_reboot_come_before_those_that_are_measured_now() -> None:
    asked = request(baseline="none")
    at = interrupted(lambda event: isinstance(event, WindowDone) and event.number == 2)
    with pytest.raises(Interrupted), run_journal(asked, resume=False) as journal:
        drawn(journal, at, asked)
    # The journal of a machine that had been up for years, and has another boot now.
    entries = [json.loads(line) for line in journal.path.read_text().splitlines()]
    for record in (entry["record"] for entry in entries):
        record["boot"] = "another"
        for sample in (*record["samples"], *record["stamped"]):
            sample["ended_s"] += 1e8
    journal.path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    with run_journal(asked, resume=True) as journal:
        result = drawn(journal, list[Event]().append, asked, clock_s=time.monotonic())
    at_s = result.step_time_s.at_s
    assert at_s is not None
    assert list(at_s) == sorted(at_s)
    assert 0 < at_s[-1] < 60


def test_another_run_begins_anew_and_more_windows_are_the_same_run() -> None:
    asked = request(baseline="none")
    at = interrupted(lambda event: isinstance(event, WindowDone))
    with pytest.raises(Interrupted), run_journal(asked, resume=False) as journal:
        drawn(journal, at, asked)
    for other in (asked.model_copy(update={"batches": (119, 81)}), request(baseline="none", duration_s=1.0)):
        with run_journal(other, resume=True) as journal:
            assert not journal.resumed
    heard: list[Event] = []
    more = request(baseline="none", windows=5, time_limit_s=60.0)
    with run_journal(more, resume=True) as journal:
        drawn(journal, heard.append, more)
    assert windows(heard) == [(number, "") for number in (2, 3, 4, 5)]


def test_two_at_once_have_a_journal_each() -> None:
    asked = request()
    with run_journal(asked, resume=False) as one, run_journal(asked, resume=False) as other:
        assert one.path != other.path


def test_a_full_disk_ends_the_keeping_and_not_the_run() -> None:
    asked, heard = request(baseline="none"), list[Event]()
    with run_journal(asked, resume=False) as journal:
        path = journal.path
    path.symlink_to("/dev/full")
    with run_journal(asked, resume=False) as journal:
        assert drawn(journal, heard.append, asked).complete
    (said,) = [event.text for event in heard if isinstance(event, Doing) and "--resume" in event.text]
    assert said.endswith("No space left on device: going on, and nothing is kept for --resume")


def test_a_balance_goes_on_with_its_rounds_and_windows() -> None:
    devices, joint = simulated_devices(str(CONFIGS / "quick-pair.toml"))
    save(probe_of(devices))
    asked = BalanceRequest(
        devices=devices,
        settings=SMALL,
        joint=joint,
        plan=PlanRequest(accumulate=1),
        measuring=Measuring(windows=2, duration_s=0.5, baseline="none"),
        round_s=0.5,
    )
    rounds: list[Event] = []

    def first(event: Event) -> None:
        rounds.append(event)
        if isinstance(event, WindowDone):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted), balance_journal(asked, resume=False) as journal:
        balance(asked, None, first, journal)
    heard: list[Event] = []
    with balance_journal(asked, resume=True) as journal:
        plan = balance(asked, None, heard.append, journal)
    told = [event.round for event in rounds if isinstance(event, RoundDone)]
    assert {one.outcome for one in told} == {"oom", "measured"}  # the profile's joint run takes more than it says
    again = [event.round for event in heard if isinstance(event, RoundDone)]
    assert [one.model_dump_json() for one in again[: len(told)]] == [one.model_dump_json() for one in told]
    measured = Counter(event.text for event in heard if isinstance(event, Doing) and event.text.startswith("round "))
    assert not [text for text in measured if int(text.split(":")[0].split()[1]) <= len(told)]
    assert plan.balance is not None
    assert plan.balance.rounds == tuple(again)
    assert plan.balance.run is not None
    first_window = next(event.measurement for event in rounds if isinstance(event, WindowDone))
    samples = first_window.step_time_s.samples
    assert plan.balance.run.step_time_s.samples[: len(samples)] == pytest.approx(samples)
    assert windows(heard)[0] == (2, "")
