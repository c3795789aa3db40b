"""Which of the splits that were tried is taken, and how many there may be."""

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


def test_of_equally_fast_splits_the_last_one_is_taken() -> None:
    rounds = Rounds(5, 2)
    for rate, batches in ((100.0, (8, 8)), (103.0, (16, 8)), (102.8, (16, 16)), (90.0, (24, 8))):
        rounds.note(split(*batches), gave(rate, *batches))
    best = rounds.best([64, 64])
    assert best is not None
    assert best.split.batches == (16, 16)


def test_a_split_that_has_run_out_of_memory_since_is_not_taken() -> None:
    rounds = Rounds(5, 2)
    rounds.note(split(8, 8), gave(100.0, 8, 8))
    rounds.note(split(32, 8), gave(200.0, 32, 8))
    best = rounds.best([24, 64])
    assert best is not None
    assert best.split.batches == (8, 8)
    assert rounds.best([4, 4]) is None
    assert rounds.held(0) == [8, 32]


def test_what_was_measured_at_another_speed_counts_only_where_there_is_nothing_else() -> None:
    rounds = Rounds(5, 2)
    rounds.note(split(8, 8), gave(100.0, 8, 8))
    rounds.devices_changed()
    assert not rounds.has(Shares((8, 8)))
    rounds.note(split(8, 16), gave(50.0, 8, 16))
    assert rounds.has(Shares((8, 16)))
    for limits, batches in (([64, 64], (8, 16)), ([64, 8], (8, 8))):
        best = rounds.best(limits)
        assert best is not None
        assert best.split.batches == batches


def test_splits_that_ran_out_of_memory_are_not_counted_up_to_one_a_device() -> None:
    rounds = Rounds(2, 2)
    for number in range(3):
        assert not rounds.are_over
        rounds.note(split(64 - number, 8), None)
    assert not rounds.are_over
    rounds.note(split(8, 8), gave(100.0, 8, 8))
    assert rounds.are_over
    assert [one.outcome for one in rounds.records] == ["oom", "oom", "oom", "measured"]
