"""For how long a split is tried, and what is proposed if the even split is faster."""

from __future__ import annotations

from random import Random
from typing import cast

from gpubalance.jobs.balance.balance import find_and_prove
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.rounds import BalanceRounds, measure_split, next_split
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.problem import best_split
from gpubalance.numbers.stats import half_width
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import DrawnGroup, noisy_devices, nothing_kept
from tests.jobs.probes import (
    CONFIGS,
    QUICK,
    SMALL,
    devices_of,
    measurement_of,
    probe_of,
    proof_of,
)
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

PAIR = CONFIGS / "quick-pair.toml"


def round_of(noise: float, at_least_s: float | None = None) -> tuple[float, ...]:
    """The step times of a round whose timings take a fifth of a second."""
    devices, joint = noisy_devices(PAIR, noise)
    worker_group = cast(
        "WorkerGroup", DrawnGroup(devices, joint, seed=0, offset=lambda *_: 1.0)
    )
    asked = BalanceRequest(devices=devices, settings=SMALL, joint=joint)
    joint_workers = JointWorkers(
        asked, None, worker_group, lambda _: None, nothing_kept()
    )
    return measure_split(
        joint_workers, BatchSplit((168, 112)), at_least_s
    ).step_time_s.samples


def test_a_round_ends_when_it_is_known_within_half_a_percent() -> None:
    assert len(round_of(0.0)) == 3  # and two that were stamped
    some = round_of(0.007)
    most = round_of(0.3)
    assert (half_width(some) or 1.0) <= 0.005 < (half_width(most) or 0.0)
    assert 3 < min(len(some), len(most)) <= max(len(some), len(most)) < 16
    assert len(round_of(0.0, at_least_s=3.0)) > 10


def test_the_even_split_is_proposed_if_it_is_faster_than_the_best() -> None:
    """The even split is proposed if it is faster than the best that was found.

    On a machine on which each device is twice as slow with any other batch.
    """
    devices, joint = noisy_devices(PAIR, 0.01)
    asked = BalanceRequest(
        devices=devices,
        settings=SMALL,
        joint=joint,
        plan=PlanRequest(global_batch=128),
        measuring=Measuring(),
    )
    worker_group = cast(
        "WorkerGroup",
        DrawnGroup(
            devices, joint, seed=0, offset=lambda _, size: 1.0 if size == 64 else 2.0
        ),
    )
    joint_workers = JointWorkers(
        asked, None, worker_group, lambda _: None, nothing_kept()
    )
    made = find_and_prove(BalanceRounds(joint_workers, probe_of(devices)))
    assert made.batches == (64, 64)
    assert proof_of(made).speedup_over_even == 1.0
    (warning,) = [one for one in made.warnings if one.code == "even-is-faster"]
    assert "and the even split 64/64 beside it" in warning.message


@cases("asked", {}, {"batch_multiple": 8}, {"global_batch": 312}, ids=str)
def test_the_largest_even_split_is_proposed_if_faster(asked: dict[str, int]) -> None:
    """The largest even split that fits is proposed if it is faster and as asked.

    The second device just holds 115 samples, more than the planner's multiples of 8 allow.
    """
    (first, second), joint = noisy_devices(PAIR, 0.01)
    memory = known(second.profile).memory_at(115, joint.extra_memory)
    profile = altered(known(second.profile), memory=memory)
    devices = (first, altered(second, memory_bytes=memory, profile=profile))
    request = BalanceRequest(
        devices=devices,
        settings=SMALL,
        joint=joint,
        plan=PlanRequest(**asked),
        measuring=Measuring(),
    )
    worker_group = cast(
        "WorkerGroup",
        DrawnGroup(
            devices, joint, seed=0, offset=lambda _, size: 1.0 if size == 115 else 2.0
        ),
    )
    joint_workers = JointWorkers(
        request, None, worker_group, lambda _: None, nothing_kept()
    )
    made = find_and_prove(BalanceRounds(joint_workers, probe_of(devices)))
    (warning,) = [one for one in made.warnings if one.code == "even-is-faster"]
    assert "and the even split 115/115 beside it" in warning.message
    if asked:
        assert made.batches != (115, 115)
        says = "not what --global-batch, --batch-multiple or --margin asks for"
        assert says in warning.message
        assert warning.next.endswith("gpubalance run --batches 115 115")
    else:
        assert made.batches == (115, 115)
        assert proof_of(made).speedup_over_even == 1.0


def test_sums_are_timed_over_at_most_16_sets_of_devices() -> None:
    """Of these six devices a 17th set could still tell something."""
    random = Random(0)
    slower = [random.uniform(1, 6) for _ in range(6)]
    devices = devices_of(
        *(altered(QUICK, beta_s=factor * QUICK.beta_s) for factor in slower)
    )
    estimates = DeviceEstimates(probe_of(devices), devices, PlanRequest(accumulate=1))
    first = best_split(estimates.problem)
    computes_s = [estimates.alone_s(device, first.split) for device in range(6)]
    estimates.learn(first, measurement_of(first.split.batches, computes_s, sync_s=0.2))

    def time_sums(devices: frozenset[int]) -> None:
        part = 1 - random.uniform(0, 0.9) * (6 - len(devices)) / 6
        estimates.sums_s |= {devices: part * 0.2, frozenset(range(6)): 0.2}

    assert next_split(estimates, time_sums, some_ran_out=False) is not None
    assert len(estimates.sums_s) == 16
