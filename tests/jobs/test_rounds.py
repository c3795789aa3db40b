"""For how long a split is tried, and what is proposed if the even split is faster."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gpubalance.jobs.balance import rounds
from gpubalance.jobs.balance.balance import find_and_prove
from gpubalance.jobs.balance.rounds import BalanceRounds, measure_split, next_split
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.problem import best_split
from gpubalance.numbers.stats import half_width
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.drawn import drawn_workers, noisy_devices
from tests.jobs.probes import (
    CONFIGS,
    QUICK,
    SMALL,
    devices_of,
    measurement_of,
    probe_of,
    proof_of,
    with_memory,
)
from tests.support.altered import altered
from tests.support.cases import cases

PAIR = CONFIGS / "quick-pair.toml"


def round_of(noise: float, at_least_s: float | None = None) -> tuple[float, ...]:
    """The step times of a round whose timings take a fifth of a second."""
    devices, joint = noisy_devices(PAIR, noise)
    asked = BalanceRequest(devices=devices, settings=SMALL, joint=joint)
    split = BatchSplit((168, 112))
    return measure_split(drawn_workers(asked), split, at_least_s).step_time_s.samples


def proven(
    devices: tuple[Device, ...], joint: JointProfile, fast: int, **plan: int
) -> tuple[Plan, Warning_]:
    """The plan, and what is warned of, if each device is twice as slow with any other batch."""
    wanted = PlanRequest(**plan)
    asked = BalanceRequest(devices=devices, settings=SMALL, joint=joint, plan=wanted)
    workers = drawn_workers(asked, lambda _, size: 1.0 if size == fast else 2.0)
    made = find_and_prove(BalanceRounds(workers, probe_of(devices)))
    (warning,) = [one for one in made.warnings if one.code == "even-is-faster"]
    assert f"but the even split {fast}/{fast} gave " in warning.message
    return made, warning


def test_a_round_ends_when_it_is_known_within_half_a_percent() -> None:
    assert len(round_of(0.0)) == 3  # and two that were stamped
    some = round_of(0.007)
    most = round_of(0.3)
    assert (half_width(some) or 1.0) <= 0.005 < (half_width(most) or 0.0)
    assert 3 < min(len(some), len(most)) <= max(len(some), len(most)) < 16
    assert len(round_of(0.0, at_least_s=3.0)) > 10


@cases("asked", {}, {"batch_multiple": 8}, {"global_batch": 312}, ids=str)
def test_the_largest_even_split_is_proposed_if_faster(asked: dict[str, int]) -> None:
    """The largest even split that fits is proposed if it is faster and as asked.

    The second device just holds 115 samples, more than the planner's multiples of 8 allow.
    """
    (first, second), joint = noisy_devices(PAIR, 0.01)
    devices = (first, with_memory(second, 115, joint.extra_memory))
    made, warning = proven(devices, joint, 115, **asked)
    if asked:
        assert made.batches != (115, 115)
        says = "because --global-batch, --batch-multiple or --margin excludes it"
        assert says in warning.message
        assert warning.next.endswith("gpubalance run --batches 115 115")
    else:
        assert made.batches == (115, 115)
        assert proof_of(made).speedup_over_even == 1.0
        assert warning.next.startswith("balance again with --batch-multiple 1: ")


def test_sums_are_timed_over_at_most_16_sets_of_devices() -> None:
    """Of these six devices a 17th set could still tell something."""
    random = Random(0)
    slower = [random.uniform(1, 6) for _ in range(6)]
    cards = [altered(QUICK, beta_s=factor * QUICK.beta_s) for factor in slower]
    devices = devices_of(*cards)
    estimates = DeviceEstimates(probe_of(devices), devices, PlanRequest(accumulate=1))
    first = best_split(estimates.problem)
    computes_s = [estimates.alone_s(device, first.split) for device in range(6)]
    estimates.learn(first, measurement_of(first.split.batches, computes_s, sync_s=0.2))

    def time_sums(devices: frozenset[int]) -> None:
        part = 1 - random.uniform(0, 0.9) * (6 - len(devices)) / 6
        estimates.sums_s |= {devices: part * 0.2, frozenset(range(6)): 0.2}

    assert next_split(estimates, time_sums, some_ran_out=False) is not None
    assert len(estimates.sums_s) == 16


def test_with_a_hierarchical_all_reduce_no_device_is_left_out() -> None:
    """It can't sum an odd number of devices, such as the three that may be faster."""

    def time_sums(devices: frozenset[int]) -> None:
        pytest.fail(f"a sum over {sorted(devices)} alone")

    devices = devices_of(QUICK, QUICK, QUICK, altered(QUICK, beta_s=0.001))
    settings = altered(SMALL, all_reduce="hierarchical")
    probe = altered(probe_of(devices), settings=settings)
    estimates = DeviceEstimates(probe, devices, PlanRequest(accumulate=1))
    first = best_split(estimates.problem)
    computes_s = [estimates.alone_s(device, first.split) for device in range(4)]
    estimates.learn(first, measurement_of(first.split.batches, computes_s, sync_s=0.02))
    following = next_split(estimates, time_sums, some_ran_out=False)
    assert following is None or following.split.used == (0, 1, 2, 3)


@cases(
    "proven, following",
    (True, [None, "best", "new", None, None]),
    (False, ["new", "best", "new", None, "new"]),
)
def test_a_proven_split_stays_unless_another_is_clearly_better(
    proven: bool, following: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 100 samples/s are known within ± 0.8 %; a round must promise 0.4 %.

    The last one is promised of batches that differ by less than 1 %.
    """
    own: Any = SimpleNamespace(split=BatchSplit((200, 100)))
    best = SimpleNamespace(value=100.0, planned=own, run=proven or None)
    best.may_have = lambda value: value < 100.8
    estimates: Any = SimpleNamespace(
        best=lambda: best,
        is_measured_now=lambda _: False,
        most_uncertain_rival=lambda: None,
    )
    planned: Any = SimpleNamespace()
    monkeypatch.setattr(rounds, "best_split", lambda _: planned)
    monkeypatch.setattr(rounds, "_fewer_devices", lambda *_: None)
    found: list[str | None] = []
    for predicted in (100.7, 100.7, 100.9, 100.3, 100.9):
        estimates.problem = SimpleNamespace(value=lambda _, value=predicted: value)
        best.may_be_measured_again = bool(found)
        planned.split = BatchSplit((203 if len(found) < 4 else 202, 100))
        next_one: Any = next_split(estimates, lambda _: None, some_ran_out=False)
        found.append({id(planned): "new", id(own): "best"}.get(id(next_one)))
    assert found == following
