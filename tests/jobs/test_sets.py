"""`balance` where sync depends on which devices are in use.

It is tested on the shipped profiles, on hosts, and with one sync for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpubalance.jobs.balance.balance import balance
from gpubalance.jobs.events import Doing, Event, Watch
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Plan
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.drawn import nothing_kept
from tests.jobs.probes import QUICK, SMALL, devices_of, of_config, probe_of, proof_of
from tests.render.golden import told
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known
from tests.support.machines import Machine


class Given(Machine):
    """Devices as they are, without noise in their sizes."""

    def __init__(
        self,
        devices: Sequence[Device],
        joint: JointProfile,
        global_batch: int | None = None,
    ) -> None:
        super().__init__(seed=0, off=0.0)
        wanted = PlanRequest(accumulate=1, global_batch=global_batch)
        self.__dict__ |= {"devices": tuple(devices), "joint": joint, "wanted": wanted}


def balanced(work: Callable[[Watch], Plan]) -> tuple[Plan, list[str]]:
    """The plan, and without which devices it said that rounds are."""
    said: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Doing) and "sync may be less without" in event.text:
            said.append(event.text.partition("without ")[2])

    return work(watch), said


def line(plan: Plan) -> str:
    """What is told of it, on one line."""
    return " ".join(told(plan).split())


@cases("global_batch", None, 512)
def test_the_published_four_are_better_off_as_three(global_batch: int | None) -> None:
    """With all four it gave 2184 samples/s at a global batch of 512, without the last 2400."""
    given = Given(*of_config("gtx1070-m40-gtx750"), global_batch)
    plan, said = balanced(given.balanced)
    assert said[0] == "GPU:3"
    assert plan.split.used == (0, 1, 2)
    (out,) = plan.left_out
    assert plan.shares[3].binds == "sync"
    assert known(plan.sync_s) == pytest.approx(0.078, rel=0.02)
    assert known(out.sync_s) == pytest.approx(0.1, rel=0.02)
    assert "GPU:3 is left out, as it would add less throughput than" in line(plan)
    faster = f"{100 / (1 + known(out.gain)) - 100:.1f} %"
    assert f" {faster} faster without it (sync" in line(plan)
    if global_batch:
        first = known(known(plan.balance).rounds[0].measured)
        assert first.throughput.median == pytest.approx(2184, rel=0.02)
        assert proof_of(plan).throughput.median == pytest.approx(2400, rel=0.02)


@cases(
    "name", "four-unlike", "gtx1080ti-gtx1080", "quick-pair", "slow-second", "two-hosts"
)
def test_with_one_sync_for_all_no_round_leaves_a_device_out(name: str) -> None:
    _, said = balanced(Given(*of_config(name)).balanced)
    assert not said


def test_a_host_behind_a_slow_network_is_left_out_and_told() -> None:
    """Two cards give more than one, but the sum over 5 Mbit takes 6 s.

    Each card takes 0.3 s + 2 ms a sample.
    """
    slow = altered(QUICK, alpha_s=0.3, beta_s=0.002, sync_s=0.3)
    slowest = altered(slow, sync_s=6.0)
    devices = []
    for one, host in zip(
        devices_of(slow, slow, slowest), ("alpha", "beta", "gamma"), strict=True
    ):
        devices.append(altered(one, host=host, index=0, uuid=f"SIM-{host}-0"))
    plan, said = balanced(Given(devices, JointProfile()).balanced)
    assert said[0] == "gamma:0"
    assert plan.split.used == (0, 1)
    text = line(plan)
    assert "gamma:0 is left out, as it would add less throughput than its" in text
    assert "times as fast without it (sync 6.00 s with it, 300 ms without)" in text


@cases(
    "sums, rounds",
    # The last card's slow link shows, and a round proves it.
    ("", ["GPU:3"]),
    # A sum takes as long without it: so no round is spent.
    ("def sum_s(devices): return 0.1", []),
    # Nothing is known then, and the round tells.
    (
        "import tensorflow as tf\n"
        "def sum_s(devices):\n"
        "    raise tf.errors.InternalError(0, 0, 'NCCL: unhandled system error')",
        ["GPU:3", "GPU:2"],
    ),
    ids=["told", "as long", "no sum"],
)
def test_a_round_without_a_device_is_spent_where_a_sum_is_faster_so(
    engine_that: Callable[[str], None], sums: str, rounds: list[str]
) -> None:
    """A round without a device is spent where a sum is faster without it."""
    engine_that(sums)
    devices, joint = of_config("gtx1070-m40-gtx750")
    save(probe_of(devices))
    request = BalanceRequest(
        devices=devices,
        settings=SMALL,
        joint=joint,
        measuring=Measuring(windows=1, duration_s=1.0, baseline="none"),
        round_s=0.5,
    )
    plan, said = balanced(lambda watch: balance(request, watch, nothing_kept()))
    assert said == rounds
    assert (3 in plan.split.used) == (not rounds)
