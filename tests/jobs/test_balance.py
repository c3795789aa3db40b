"""Balancing ends where it should on simulated devices; the probes are the profiles'."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from gpubalance.errors import UsageError
from gpubalance.jobs.balance.balance import balance, find_and_prove
from gpubalance.jobs.saved import save
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.probe import Probe
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.drawn import nothing_kept, quiet
from tests.jobs.probes import QUICK, SMALL, devices_of, of_config, probe_of, with_memory
from tests.render.golden import told
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

pytestmark = pytest.mark.usefixtures("either_engine")


def balanced(
    devices: tuple[Device, ...],
    joint: JointProfile,
    *,
    rounds: int = 5,
    baseline: Literal["even", "none"] = "none",
    probe: Probe | None = None,
    **plan: object,
) -> tuple[Plan, Balance]:
    save(probe or probe_of(devices))
    asked = BalanceRequest(
        devices=devices,
        settings=SMALL,
        joint=joint,
        plan=PlanRequest(**plan),
        measuring=Measuring(windows=2, duration_s=2.0, baseline=baseline),
        round_s=1.5,
        rounds=rounds,
    )
    made = balance(asked, quiet, nothing_kept())
    return made, known(made.balance)


def test_the_quick_pair_steps_back_and_says_what_binds() -> None:
    """The published pair itself is balanced by `scripts/bench balance`.

    Its steps take the better part of a second.
    """
    devices, joint = of_config("quick-pair")
    made, how = balanced(devices, joint, baseline="even", accumulate=1)
    run = known(how.run)
    assert known(run.speedup_over_even) >= 1.1
    even = known(run.baselines.even)
    best = known(made.predicted.best_at_even)
    assert even.split == BatchSplit((112, 112))
    text = " ".join(told(made).split())
    assert " × the largest even split that fits, 112/112 (" in text
    assert f" samples/s with a global batch of 224, not {made.global_batch}" in text
    given = f"is predicted to give {best.throughput:.0f} samples/s"
    assert f"like the even split: the split {best.split} {given}" in text
    assert run.imbalance <= 1.02
    # The profile's joint run takes more than the gradients say.
    assert how.rounds[0].outcome == "oom"
    assert "memory" in {share.binds for share in made.shares}
    gap = known(how.solo_gap)
    lost = gap.left_out + gap.batch_sizes + sum(gap.slowdown) + gap.imbalance + gap.sync
    assert lost + gap.throughput == pytest.approx(gap.solo_sum, rel=1e-5)
    assert made.sync_s == pytest.approx(joint.sync_s, abs=0.004)


@cases("wrong, rounds", ((), 3), ((1.3,), 5), ((1.0, 1.0, 0.7), 5))
def test_four_unlike_finish_together(wrong: tuple[float, ...], rounds: int) -> None:
    devices, joint = of_config("four-unlike")
    small = tuple(with_memory(device, 400 // (1 + device.index)) for device in devices)
    plain = altered(joint, extra_memory=0)
    probe = probe_of(small, wrong=wrong)
    _, how = balanced(small, plain, probe=probe, rounds=rounds, accumulate=1)
    assert known(how.run).imbalance <= 1.02
    assert len(how.rounds) <= rounds


def test_packs_are_chosen_before_another_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that ran out of memory is known to the next."""
    called: list[str] = []

    def step(name: str, *_: Any, **flags: bool) -> Any:
        called.append(name)
        assert flags.get("some_ran_out", True)
        return True if name == "has_much_sync" else None  # no split follows

    steps = ["has_much_sync", "_choose_packs", "next_split", "finish", "result_of"]
    for name in steps:
        monkeypatch.setattr(f"{balance.__module__}.{name}", partial(step, name))
    best = SimpleNamespace(
        run=1, counted_measurements=[1], planned=SimpleNamespace(split=())
    )
    estimates = SimpleNamespace(best=lambda: best)
    facts = {"no_rounds_left": False, "rounds_out_of_memory": 1, "time_sums": None}
    find_and_prove(cast("Any", SimpleNamespace(**facts, estimates=estimates)))
    assert called == steps


def test_a_device_that_is_left_out_may_leave_an_odd_number() -> None:
    """A device that is left out may leave an odd number that no copy sums.

    TensorFlow's hierarchical all-reduce would drop one of the three: no worker is started.
    """
    slow = altered(QUICK, name="slow", alpha_s=10.0)
    devices = devices_of(QUICK, QUICK, QUICK, slow)
    save(probe_of(devices))
    settings = altered(SMALL, all_reduce="hierarchical")
    request = BalanceRequest(devices=devices, settings=settings)
    with pytest.raises(UsageError, match="is odd, and 3 of 4 have samples") as caught:
        balance(request, quiet, nothing_kept())
    assert caught.value.remedy.startswith("use one-device")
