"""What an interrupted run or balance has finished is measured once.

Another process goes on with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpubalance.errors import Interrupted, NothingFits
from gpubalance.jobs.balance.balance import balance, probe_for
from gpubalance.jobs.events import Doing, Event, TimingDone, Watch, WindowDone
from gpubalance.jobs.journal import Journal, journal_of, software_key
from gpubalance.jobs.run import run
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Plan, Round
from gpubalance.results.probe import Failure
from gpubalance.results.run import Run
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import TimeLimit
from tests.jobs.drawn import (
    DrawnWorker,
    group_of,
    joint_run,
    noisy_devices,
    nothing_kept,
    quiet,
)
from tests.jobs.probes import CONFIGS, SMALL, done, of_config, probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

DEVICES, JOINT = noisy_devices(CONFIGS / "quick-pair.toml", noise=0.0)


def request(**measuring: object) -> RunRequest:
    return RunRequest(
        devices=DEVICES,
        split=BatchSplit((120, 80)),
        settings=Settings(model="small"),
        joint=JOINT,
        measuring=Measuring(**{"windows": 3, "duration_s": 2.0, **measuring}),
    )


def drawn(
    journal: Journal, watch: Watch, asked: RunRequest, clock_s: float = 0.0
) -> Run:
    journal.watch = watch
    worker = DrawnWorker(DEVICES, JOINT, seed=0, clock_s=clock_s)
    return joint_run(asked, group_of(worker), watch, journal)


def resumed(asked: RunRequest, clock_s: float = 0.0) -> tuple[Run, list[Event]]:
    """The run that goes on with the journal that is left, and what it told."""
    heard: list[Event] = []
    with journal_of(asked, resume=True) as journal:
        return drawn(journal, heard.append, asked, clock_s), heard


def codes_of(result: Run | Plan) -> set[str]:
    return {warning.code for warning in result.warnings}


def is_window(event: Event) -> bool:
    return isinstance(event, WindowDone)


def interrupted(
    asked: RunRequest, at: Callable[[Event], bool] = is_window
) -> tuple[Journal, Interrupted]:
    """The journal of a run that was interrupted at `at`, and how the run ended.

    By default that is at its first window.
    """

    def watch(event: Event) -> None:
        if at(event):
            raise KeyboardInterrupt

    fresh = journal_of(asked, resume=False)
    with pytest.raises(Interrupted) as ended, fresh as journal:
        drawn(journal, watch, asked)
    return journal, ended.value


def windows(heard: list[Event]) -> list[tuple[int, str]]:
    done = [event for event in heard if isinstance(event, WindowDone)]
    return [(event.number, event.name) for event in done]


def as_kept(one: Round) -> tuple[tuple[int, ...], str | None]:
    """A round without its prediction, which is computed again from the figures in the file."""
    return one.batches, None if one.measured is None else one.measured.model_dump_json()


@cases(
    "last, left",
    ((1, ""), [(1, "even"), (2, "even"), (2, ""), (3, ""), (3, "even")]),
    ((2, "even"), [(2, ""), (3, ""), (3, "even")]),
    ((3, "even"), []),
)
def test_a_run_goes_on_after_its_last_whole_window(
    last: tuple[int, str], left: list[tuple[int, str]]
) -> None:
    asked = request()
    told: list[Event] = []

    def at(event: Event) -> bool:
        told.append(event)
        return isinstance(event, WindowDone) and (event.number, event.name) == last

    journal, ended = interrupted(asked, at)
    first = ended.partial
    result, heard = resumed(asked)
    again = windows(told)
    # Told once more, and not measured
    assert sorted(windows(heard)[: len(again)]) == sorted(again)
    assert windows(heard)[len(again) :] == left
    told_so_far = Doing("everything so far was measured before the interruption")
    assert heard.count(told_so_far) == bool(left)
    if left:
        before = heard[: heard.index(told_so_far)]
        assert windows(before) == windows(heard)[: len(again)]
    assert result.complete
    found = result.step_time_s.samples[: len(first.step_time_s.samples)]
    assert found == first.step_time_s.samples
    whole = drawn(nothing_kept(), quiet, asked)
    assert len(result.step_time_s.samples) == len(whole.step_time_s.samples)
    assert result.throughput.median == pytest.approx(whole.throughput.median)
    even = known(result.baselines.even)
    of_whole = known(whole.baselines.even)
    assert len(even.step_time_s.samples) == len(of_whole.step_time_s.samples)
    assert "resumed" in codes_of(result)
    assert "resumed" not in codes_of(whole)
    assert not journal.path.exists()  # what is in a result is kept no longer


def test_times_from_before_a_reboot_come_before_those_of_now() -> None:
    """Times from before a reboot come before those that are measured now."""
    asked = request(baseline="none")

    def second(event: Event) -> bool:
        return isinstance(event, WindowDone) and event.number == 2

    journal, _ = interrupted(asked, second)
    # The journal of a machine that had been up for years, and was booted since.
    entries = [json.loads(line) for line in journal.path.read_text().splitlines()]
    for entry in entries:
        for window in entry["record"]["windows"]:
            for timing in (*window["timings"], *window["stamped"]):
                timing["ended_s"] += 1e8
    journal.path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    result, _ = resumed(asked, clock_s=time.monotonic())
    at_s = known(result.step_time_s.at_s)
    assert list(at_s) == sorted(at_s)
    assert 0 < at_s[-1] < 60


def test_another_run_begins_anew_and_more_windows_are_the_same_run() -> None:
    asked = request(baseline="none")
    interrupted(asked)
    for other in (
        altered(asked, split=BatchSplit((119, 81))),
        request(baseline="none", duration_s=1.0),
    ):
        with journal_of(other, resume=True) as journal:
            assert not journal.resumed
    more = request(baseline="none", windows=5, time_limit_s=60.0)
    result, heard = resumed(more)
    assert windows(heard) == [(number, "") for number in (1, 2, 3, 4, 5)]
    assert "resumed" in codes_of(result)


def test_windows_of_another_proof_of_the_command_are_not_taken_over() -> None:
    """As `balance` has them of a split that is proven once more."""
    asked = request(baseline="none")
    interrupted(asked)
    heard: list[Event] = []
    worker = group_of(DrawnWorker(DEVICES, JOINT, seed=0))
    with journal_of(asked, resume=True) as journal:
        again = joint_run(asked, worker, heard.append, journal, proof=1)
    assert windows(heard) == [(1, ""), (2, ""), (3, "")]
    assert "resumed" not in codes_of(again)


def test_two_at_once_have_a_journal_each_and_the_newest_left_goes_on() -> None:
    """Two at once have a journal each and the newest that is left is gone on with."""
    asked = request(baseline="none")
    with journal_of(asked, resume=False) as one:
        newest, ended = interrupted(asked)
        assert "--resume continues it" in str(ended)
    older, _ = interrupted(asked)
    assert one.path == older.path != newest.path
    os.utime(older.path, (1, 1))
    with journal_of(asked, resume=True) as journal:
        assert journal.path == newest.path
        assert journal.resumed


def test_an_interrupt_within_the_first_window_gives_what_was_measured() -> None:
    """An interrupt within the first window gives what was measured and says that it is unfinished."""
    heard: list[Event] = []

    def late(event: Event) -> bool:
        """Whether an event is a few timings after the stamped steps, which come first."""
        if heard or (isinstance(event, Doing) and "window 1" in event.text):
            heard.append(event)
        timings = [one for one in heard if isinstance(one, TimingDone)]
        return sum(timing.compute_s is None for timing in timings) > 3

    _, ended = interrupted(request(baseline="none"), late)
    assert isinstance(ended.partial, Run)
    of = "the result comes from an incomplete measurement, and --resume has nothing to continue"
    assert str(ended) == f"interrupted: {of}"


def test_the_oldest_journals_go_and_never_the_one_that_is_used() -> None:
    for number in range(110):
        journal = Journal(f"old-{number}", "a test", resume=False)
        journal.add("old", Failure(exit_code=1, message=str(number)))
        os.utime(journal.path, (number, number))
        journal.close()
    journal = Journal("old-10", "a test", resume=True)
    journal.add("new", Failure(exit_code=1, message="again"))
    journal.close()
    with Journal("old-10", "a test", resume=True) as journal:
        kept = [one.message for one in journal.load_all(Failure).values()]
    assert kept == ["10", "again"]
    assert not Journal.left_at("old-0")
    assert Journal.left_at("old-109")


@cases("interrupted", False, True)
def test_however_the_search_for_what_fits_ends_what_was_measured_is_given(
    interrupted: bool, tmp_path: Path, engine_that: Callable[[str], None]
) -> None:
    full = tmp_path / "full"
    there = f"pathlib.Path({str(full)!r}).exists()"
    engine_that(f"import pathlib\ndef holds(device, size): return not {there}\n")

    def watch(event: Event) -> None:
        if isinstance(event, WindowDone):
            full.touch()
        searches = isinstance(event, Doing) and "looking for what fits" in event.text
        if interrupted and searches:
            raise KeyboardInterrupt

    kind = Interrupted if interrupted else NothingFits
    with pytest.raises(kind) as told:
        run(request(baseline="none"), watch, nothing_kept())
    assert isinstance(told.value.partial, Run)
    assert told.value.partial.complete is False


def test_the_key_has_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for path in ("mine.py", "package/__init__.py", "package/inner.py"):
        (tmp_path / path).write_text("raise SystemExit('loaded')")
    names = ("mine.py:net", "mine:net", "package:net", "package.inner:net")
    before = [software_key(name) for name in (*names, "small", "absent:net")]
    assert len(set(before)) == 2  # the same content, and none
    for path in ("mine.py", "package/__init__.py", "package/inner.py"):
        (tmp_path / path).write_text("other")
    assert not set(before[:4]) & {software_key(name) for name in names}


@cases("fresh", True, False)
def test_a_balance_goes_on_with_the_probe_that_it_had(fresh: bool) -> None:
    asked = BalanceRequest(devices=DEVICES, settings=SMALL, joint=JOINT, fresh=fresh)
    had, other = (altered(probe_of(DEVICES), created=f"2026-01-0{n}") for n in (1, 2))
    heard: list[Event] = []
    journal = journal_of(asked, resume=False)
    journal.add("probe", had)
    journal.close()
    save(other)
    with journal_of(asked, resume=True) as journal:
        made = probe_for(asked, TimeLimit(), heard.append, journal)
    assert made.created == had.created
    assert Doing("planning with the probe of 2026-01-01", stays=True) in heard


def test_a_fresh_balance_that_is_interrupted_in_its_probe_leaves_nothing() -> None:
    """Not what an older one had. That the probe has ended does not end its caller's time."""
    asked = BalanceRequest(devices=DEVICES, settings=SMALL, joint=JOINT, fresh=True)
    older = journal_of(asked, resume=False)
    older.add("probe", probe_of(DEVICES))
    older.close()

    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    limit = TimeLimit()
    with pytest.raises(Interrupted), journal_of(asked, resume=False) as journal:
        probe_for(asked, limit, interrupt, journal)
    limit.check()
    with journal_of(asked, resume=True) as journal:
        assert not journal.resumed


@pytest.mark.usefixtures("either_engine")
def test_a_balance_goes_on_with_its_rounds_and_windows() -> None:
    devices, joint = of_config("quick-pair")
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

    fresh = journal_of(asked, resume=False)
    with pytest.raises(Interrupted) as ended, fresh as journal:
        balance(asked, first, journal)
    assert isinstance(ended.value.partial, Plan)
    heard: list[Event] = []
    with journal_of(asked, resume=True) as journal:
        plan = balance(asked, heard.append, journal)
    told = [event.record for event in done(rounds, Round)]
    # The profile's joint run takes more than it says.
    assert {round_.outcome for round_ in told} == {"oom", "measured"}
    again = [event.record for event in done(heard, Round)]
    assert list(map(as_kept, again[: len(told)])) == list(map(as_kept, told))
    for event in heard:
        if isinstance(event, Doing) and event.text.startswith("round "):
            assert int(event.text.split(":")[0].split()[1]) > len(told)
    assert known(plan.balance).rounds == tuple(again)
    # On a busy machine the proof may lead to one of another split.
    # This proof went on with its window.
    both: Any = (rounds, heard)
    before, after = (next(filter(is_window, events)).measured for events in both)
    assert after.batches == before.batches
    assert after.step_time_s.samples == pytest.approx(before.step_time_s.samples)
    assert windows(heard)[:2] == [(1, ""), (2, "")]
    assert "resumed" in codes_of(plan)
