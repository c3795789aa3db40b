"""How long a command says it will take.

It says as long as last time, or else as usual, and corrects that as it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.events import Doing, Event, PhaseBegun, TimeLeft
from gpubalance.jobs.phases import Phases, estimate, keep_durations, phases_of
from gpubalance.numbers.units import NO_TIME, DurationRange
from gpubalance.settings.measuring import Measuring, Tracing
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.state import state_folder
from tests.support.altered import altered

REQUEST = BalanceRequest(
    devices=simulated_devices("2")[0], settings=Settings(model="small"), each=True
)
NAMES = [f"{device.label} alone" for device in REQUEST.devices] + ["rounds", "proof"]


@dataclass
class Command:
    """A command whose phases take as long as a test wants."""

    request: BalanceRequest | ProbeRequest = REQUEST
    now_s: float = 100.0
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.phases = Phases(self.request, self.events.append, lambda: self.now_s)

    def phase(self, name: str, seconds: float, by_job_s: float = 0.0) -> PhaseBegun:
        """Begins a phase and lets the time pass; returns what is told of it."""
        duration = DurationRange.about(by_job_s) if by_job_s else None
        self.phases(PhaseBegun(name, duration=duration))
        begun = [event for event in self.events if isinstance(event, PhaseBegun)][-1]
        self.now_s += seconds
        return begun

    @property
    def left(self) -> list[TimeLeft]:
        return [event for event in self.events if isinstance(event, TimeLeft)]

    @property
    def told(self) -> list[str]:
        """The texts so far."""
        return [event.text for event in self.events if isinstance(event, Doing)]


def _phase_and_later_s(begun: PhaseBegun) -> tuple[float, float]:
    """How long the phase takes, and later ones."""
    assert begun.duration is not None
    return begun.duration.least_s, begun.later.least_s


def _usual_s() -> list[float]:
    return [phase.seconds for phase in phases_of(REQUEST)]


def test_a_command_is_expected_to_take_as_long_as_last_time() -> None:
    usual_s = _usual_s()
    took_s = [31.0, 12.0, 8.0, 44.0]
    first = Command()
    begun = [first.phase(name, took) for name, took in zip(NAMES, took_s, strict=True)]
    assert [one.name for one in begun] == NAMES
    assert [(one.number, one.of) for one in begun] == [(n, 4) for n in (1, 2, 3, 4)]
    assert _phase_and_later_s(begun[0]) == (usual_s[0], sum(usual_s[1:]))
    first.phases.keep()

    expected = estimate(REQUEST)
    assert [phase.name for phase in expected.phases] == NAMES
    assert [phase.seconds for phase in expected.phases] == took_s
    assert expected.seconds == sum(took_s)
    assert _phase_and_later_s(Command().phase(NAMES[0], 0)) == (
        took_s[0],
        sum(took_s[1:]),
    )
    # What changes nothing about the time makes no difference. What does change it is as usual.
    more: Any = {"fresh": True, "tracing": Tracing(folder="logs", name="run")}
    limited = altered(REQUEST, measuring=Measuring(time_limit_s=500), **more)
    assert estimate(limited).seconds == sum(took_s)
    asked: Any = {"deadline_s": 5, "time_limit_s": 9, "least_samples": 3, **more}
    assert estimate(altered(REQUEST.probe, **asked)).seconds == 43.0
    other = altered(REQUEST, settings=Settings(model="probe"))
    assert [phase.seconds for phase in estimate(other).phases] == usual_s


def test_what_is_often_measured_is_not_forgotten_for_what_is_not() -> None:
    for others in range(4):
        often = Command()
        often.phase("proof", 123)
        often.phases.keep()
        keep_durations({f"{others} {number}": 1.0 for number in range(150)})
    assert phases_of(REQUEST)[-1].seconds == 123


def test_phases_that_a_kept_result_replaces_do_not_count() -> None:
    """Phases that a kept result replaces do not count and repeated ones are one."""
    command = Command()
    rounds = command.phase("rounds", 5)
    assert (rounds.number, rounds.of) == (1, 2)
    assert _phase_and_later_s(rounds) == (_usual_s()[2], _usual_s()[3])
    command.phase("rounds", 5)
    assert len(command.events) == 1
    command.phase("proof", 20)
    command.phase("rounds", 7)
    command.phase("proof", 20)
    command.phases.keep()
    assert [phase.seconds for phase in phases_of(REQUEST)] == [*_usual_s()[:2], 17, 40]


def test_what_a_phase_still_needs_moves_the_whole_rest() -> None:
    command = Command()
    command.phase(NAMES[0], 0)
    command.phases(TimeLeft(DurationRange(5.0, 8.0)))
    later_s = sum(_usual_s()[1:])
    left = DurationRange(5.0 + later_s, 8.0 + later_s + 20.0)
    assert command.left[-1].duration == left


def test_what_a_step_takes_moves_the_later_phases_too_and_the_rest_falls() -> None:
    """The other device's probe takes as long, rounds and proof by the steps that they have."""
    command = Command()
    command.phase(NAMES[0], 20)
    left_s = []
    for seconds in (200.0, 120.0, 40.0):
        command.phases(TimeLeft(DurationRange.about(seconds), step_s=3.0))
        left_s.append(command.left[-1].duration.least_s)
        command.now_s += 80.0
    assert left_s == sorted(left_s, reverse=True)
    began = command.phase(NAMES[1], 0)
    assert _phase_and_later_s(began)[0] == pytest.approx(260.0)
    assert _phase_and_later_s(command.phase("rounds", 0))[0] > 2 * _usual_s()[2]


def test_the_next_device_of_a_probe_takes_as_long_as_the_last_one() -> None:
    command = Command(REQUEST.probe)
    command.phase(NAMES[0], 0)
    command.phases(TimeLeft(DurationRange.about(70.0), step_s=0.1))
    assert command.left[-1].later == DurationRange.about(70.0)
    command.now_s += 40.0
    assert command.phase(NAMES[1], 0).duration == DurationRange.about(40.0)


def test_the_proof_of_a_split_takes_as_long_as_that_splits_steps() -> None:
    """The probe's last step was of the largest batch, and ten times as long.

    What the job expects by its last round counts more.
    """
    command = Command()
    command.phase(NAMES[1], 0)
    command.phases(TimeLeft(DurationRange.about(200.0), step_s=3.0))
    command.phase("rounds", 0)
    command.phases(TimeLeft(DurationRange.about(5.0), step_s=0.3))
    assert command.left[-1].later.least_s == _usual_s()[3]
    # A round knows the proof of its split.
    proof = DurationRange(31.0, 43.0)
    command.phases(TimeLeft(DurationRange(5.0, 7.0), proof, 0.3))
    assert command.left[-1] == TimeLeft(DurationRange(36.0, 50.0), proof)
    assert command.phase("proof", 0).duration == proof
    command.phase("rounds", 0)
    assert _phase_and_later_s(command.phase("proof", 0, by_job_s=84.2))[0] == 84.2


def test_that_it_takes_over_twice_as_long_is_told_once() -> None:
    """That it takes over twice as long as announced at most is told once it is known."""
    command = Command()
    command.phase("proof", 10)  # of 30 to 50 s
    command.phases(TimeLeft(DurationRange.about(89.0)))
    assert not command.told
    command.phases(TimeLeft(DurationRange(91.0, 200.0)))
    (told,) = command.told
    twice = "taking over twice the estimated 30 to 50 s"
    assert told == f"{twice}: about 91 s to 3 min more"
    command.phases(TimeLeft(DurationRange.about(900.0)))
    assert command.told == [told]


def test_no_number_is_told_before_steps_tell_it_and_none_is_lower() -> None:
    """A phase that is overdue is guessed to take half as long again, which is not told."""
    silent = Command()
    silent.phase(NAMES[0], 500)
    silent.phases(Doing("measuring on"))
    (longer, _) = silent.told
    assert longer.startswith("taking longer than the estimated ")
    assert "more" not in longer
    silent.phases(TimeLeft(DurationRange.about(10.0), step_s=0.1))
    assert silent.told[2:][0].startswith("by its first steps: about ")

    for left_s, told in ((1.0, 0), (3.0, 1)):  # 72 and 76 s in all, of 54 to 74
        steady = Command()
        steady.phase(NAMES[0], 20)
        steady.phases(TimeLeft(DurationRange.about(left_s), step_s=0.01))
        assert len(steady.told) == told

    by_job = Command()
    by_job.phase(NAMES[0], 10)
    by_job.phases(TimeLeft(DurationRange.about(500.0)))
    (longer,) = by_job.told
    assert longer.startswith("taking over twice the estimated ")
    by_job.phases(TimeLeft(DurationRange.about(100.0), step_s=0.1))
    assert by_job.told == [longer]


def test_the_first_overdue_phase_corrects_what_is_left_once() -> None:
    command = Command()
    command.phase(NAMES[0], _usual_s()[0])
    command.phases(Doing("in time"))
    assert not command.left
    command.now_s += 3 * _usual_s()[0]
    # The phase has taken four times as long by now, and is taken to need half of that again.
    for _ in range(2):
        command.phases(Doing("overdue"))
    later_s = 6 * sum(_usual_s()[1:])
    # So are the two windows of 5 s that may follow, of two splits.
    later = DurationRange(later_s, later_s + 6 * 20.0)
    present = DurationRange.about(2 * _usual_s()[0])
    assert command.left == [TimeLeft(present + later, later)]
    begun = command.phase(NAMES[1], 100 * _usual_s()[1])
    assert _phase_and_later_s(begun) == (6 * _usual_s()[1], 6 * sum(_usual_s()[2:]))
    command.phases(Doing("overdue"))
    assert len(command.left) == 1


def test_a_time_limit_that_is_too_short_is_told_at_once() -> None:
    for limit_s, told in ((sum(_usual_s()) - 1, 1), (sum(_usual_s()) + 1, 0)):
        command = Command(altered(REQUEST, measuring=Measuring(time_limit_s=limit_s)))
        for name in NAMES[:2]:
            command.phase(name, 1.0)
        assert len(command.told) == told


def test_what_is_asked_for_counts() -> None:
    long = altered(REQUEST, measuring=Measuring(windows=5, duration_s=60.0))
    assert estimate(long).phases[-1].seconds == 600
    slow = altered(REQUEST.probe, each=False, duration_s=30.0)
    assert [phase.seconds for phase in estimate(REQUEST.probe).phases] == [12, 12]
    assert [phase.seconds for phase in estimate(slow).phases] == [312]
    (at_once,) = estimate(altered(REQUEST.probe, parallel=True)).phases
    assert (at_once.name, at_once.seconds) == ("all devices at once", 12)


@pytest.mark.parametrize("content", ["", "[1]", '{"one": "NaN"}'])
def test_damaged_durations_are_as_none(content: str) -> None:
    usual_s = _usual_s()
    (state_folder("durations") / "phases.json").write_text(content)
    assert _usual_s() == usual_s


def test_what_a_journal_has_a_part_of_tells_no_time_and_is_no_measure() -> None:
    command = Command(altered(REQUEST, measuring=Measuring(time_limit_s=1)))
    command.phases(Doing("continuing an unfinished measurement", resumes=True))
    begun = [command.phase(name, 0.01) for name in NAMES]
    assert {(one.duration, one.later) for one in begun} == {(None, NO_TIME)}
    assert len(command.told) == 1  # nor is it too long for the limit
    command.phases.keep()
    assert [phase.seconds for phase in phases_of(REQUEST)] == _usual_s()
