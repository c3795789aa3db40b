"""Whether a device has changed its speed, by what it took in one round and in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.balance.knowledge import Knowledge
from gpubalance.settings.requests import PlanRequest
from gpubalance.settings.shares import Shares
from tests.jobs.probes import measurement_of, probe_of

QUICK = str(Path(__file__).parents[2] / "configs" / "quick-pair.toml")


def knowledge() -> Knowledge:
    probe = probe_of(simulated_devices(QUICK)[0])
    return Knowledge(probe, probe.probes, PlanRequest())


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
