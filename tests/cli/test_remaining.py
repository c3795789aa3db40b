"""What is left of a job, as its phases and corrections come."""

from __future__ import annotations

from gpubalance.cli.remaining import Remaining
from gpubalance.jobs.events import PhaseBegun, TimeLeft


def test_what_is_left_is_corrected_and_never_less_than_the_phases_to_come() -> None:
    remaining = Remaining()
    assert (remaining.short, remaining.whole_s) == ("", 0.0)
    remaining.begin(PhaseBegun("GPU:0 alone", 1, 3, 600.0, 1200.0))
    assert remaining.line == "phase 1 of 3, GPU:0 alone: about 10 min; about 20 min in all"
    remaining.correct(TimeLeft(1500.0))
    assert remaining.short == "phase 1 of 3, about 25 min of 25 left"
    remaining.correct(TimeLeft(0.0))  # it takes longer than was thought
    assert remaining.short == "phase 1 of 3, about 10 min of 10 left"
    remaining.begin(PhaseBegun("rounds", 2, 3, 60.0, 300.0))
    assert remaining.line == "phase 2 of 3, rounds: about 60 s; about 5 min of 5 left"
    remaining.begin(PhaseBegun("proof", 3, 3, 0.0, 0.0))
    assert remaining.short == "phase 3 of 3"


def test_a_job_of_one_phase_has_no_number() -> None:
    remaining = Remaining()
    remaining.begin(PhaseBegun("run", 1, 1, 600.0, 600.0))
    assert (remaining.line, remaining.short) == ("run: about 10 min", "about 10 min of 10 left")
