"""How many splits are tried and for how long, and what they showed that the devices hold."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from gpubalance.jobs.balance.rounds import Rounds
from gpubalance.jobs.balance.together import Together
from gpubalance.numbers.stats import half_width
from gpubalance.planning.problem import Allocation
from gpubalance.results.run import Measurement
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.party import Party
from tests.jobs.drawn import DrawnParty, noisy_devices
from tests.jobs.probes import SMALL, measurement_of

PAIR = Path(__file__).parents[2] / "configs" / "quick-pair.toml"


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


def round_of(noise: float, at_least_s: float | None = None) -> tuple[float, ...]:
    """The step times of a round whose timings take a fifth of a second."""
    devices, joint = noisy_devices(PAIR, noise)
    party = cast("Party", DrawnParty(devices, joint, seed=0, offset=lambda *_: 1.0))
    together = Together(BalanceRequest(devices=devices, settings=SMALL, joint=joint), None, party, lambda _: None)
    return together.measure(Shares((168, 112)), at_least_s).step_time_s.samples


def test_a_round_ends_when_it_is_known_within_one_percent() -> None:
    assert len(round_of(0.0)) == 3  # and two that were stamped
    some, most = round_of(0.02), round_of(0.3)
    assert (half_width(some) or 1.0) <= 0.01 < (half_width(most) or 0.0)
    assert 3 < min(len(some), len(most)) <= max(len(some), len(most)) < 16
    assert len(round_of(0.0, at_least_s=3.0)) > 10
