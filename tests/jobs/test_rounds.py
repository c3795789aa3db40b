"""How many splits are tried, and what they showed that the devices hold."""

from __future__ import annotations

from gpubalance.jobs.balance.rounds import Rounds
from gpubalance.planning.problem import Allocation
from gpubalance.results.run import Measurement
from gpubalance.settings.shares import Shares
from tests.jobs.probes import measurement_of


def split(first: int, second: int) -> Allocation:
    times = first / 1000, second / 1000
    return Allocation(Shares((first, second)), times, max(times), ("speed", "speed"))


def gave(rate: float, *batches: int) -> Measurement:
    return measurement_of(batches, [sum(batches) / rate] * len(batches))


def test_splits_that_ran_out_of_memory_are_not_counted_up_to_one_a_device() -> None:
    rounds = Rounds(2, 2)
    for number in range(3):
        assert not rounds.are_over
        rounds.note(split(64 - number, 8), None)
    assert not rounds.are_over
    rounds.note(split(8, 8), gave(100.0, 8, 8))
    assert rounds.are_over
    assert [one.outcome for one in rounds.records] == ["oom", "oom", "oom", "measured"]


def test_a_device_has_held_what_it_trained_with() -> None:
    rounds = Rounds(5, 2)
    rounds.note(split(8, 8), gave(100.0, 8, 8))
    rounds.note(split(64, 8), None)
    rounds.note(split(32, 8), gave(200.0, 32, 8))
    assert rounds.held(0) == [8, 32]
