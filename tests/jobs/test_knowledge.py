"""What is learned of devices from what they took together: their speed, and whether it has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.balance.knowledge import Knowledge
from gpubalance.jobs.plan import best_split
from gpubalance.settings.device import JointProfile
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares
from tests.jobs.drawn import drawn_run
from tests.jobs.probes import devices_of, measurement_of, probe_of

PAIR = simulated_devices(str(Path(__file__).parents[2] / "configs" / "quick-pair.toml"))[0]


def knowledge() -> Knowledge:
    probe = probe_of(PAIR)
    return Knowledge(probe, probe.probes, PlanRequest())


def test_a_devices_update_is_its_own_wherever_it_trains() -> None:
    """Learned of both together, it is neither their sync nor forgotten of one alone."""
    profiles = [device.profile.model_copy(update={"update_s": 0.005}) for device in PAIR if device.profile]
    probe = probe_of(devices_of(*profiles))
    known = Knowledge(probe, probe.probes, PlanRequest())
    split = Shares((64, 32))
    together = [profile.alpha_s + profile.beta_s * b for profile, b in zip(profiles, split.batches, strict=True)]
    known.learn(split, measurement_of(split.batches, together, sync_s=0.004, update_s=0.005))
    assert known.sync_s == pytest.approx(0.004)
    assert [load.update_s for load in known.loads] == pytest.approx([0.005, 0.005])
    assert [load.model.step_time_s(64) for load in known.loads] == pytest.approx(
        [profile.alpha_s + profile.beta_s * 64 for profile in profiles]
    )
    planned = best_split(known.problem)
    again = known.again(replace(planned, split=Shares((64, 0)), compute_s=(0.0, 0.0)))
    assert again.step_time_s == pytest.approx(profiles[0].alpha_s + profiles[0].beta_s * 64 + 0.005)


def test_no_device_is_slower_than_alone_for_its_update() -> None:
    profiles = [device.profile.model_copy(update={"update_s": 0.005}) for device in PAIR if device.profile]
    devices = devices_of(*profiles)
    run = drawn_run(devices, JointProfile(sync_s=0.004), (64, 40), seed=1)
    probe = probe_of(devices)
    gap = Knowledge(probe, probe.probes, PlanRequest()).solo_gap(Shares((64, 40)), run)
    assert gap is not None
    assert gap.slowdown == pytest.approx((0.0, 0.0), abs=1e-3)
    assert run.sync_s == pytest.approx(0.004)


def learn(known: Knowledge, batches: tuple[int, int], factor: float) -> None:
    """The first device takes so many times what it took alone, the second what it did."""
    split = Shares(batches)
    computes = [known.compute_s(i, split, alone=True) * f for i, f in enumerate((factor, 1.0))]
    known.learn(split, measurement_of(batches, computes, sync_s=0.004))


@pytest.mark.parametrize(
    ("first", "then", "moved"),
    [
        (((64, 32), 1.0), ((64, 32), 1.04), []),
        (((64, 32), 1.0), ((64, 32), 1.08), [(0, pytest.approx(0.08))]),
        (((64, 32), 1.0), ((64, 32), 0.9), [(0, pytest.approx(-0.1))]),
        # With another batch it may be the step-time model that is wrong.
        (((64, 32), 1.0), ((32, 32), 1.12), []),
        (((64, 32), 1.0), ((32, 32), 1.4), [(0, pytest.approx(0.4))]),
        # A probe that was wrong all along is no change.
        (((64, 32), 1.3), ((64, 32), 1.3), []),
    ],
)
def test_a_device_that_changes_its_speed_is_told_from_a_model_that_is_wrong(
    first: tuple[tuple[int, int], float], then: tuple[tuple[int, int], float], moved: list[object]
) -> None:
    known = knowledge()
    learn(known, *first)
    learn(known, *then)
    assert list(known.moved()) == moved
    assert known.sync_s == pytest.approx(0.004)
