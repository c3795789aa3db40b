"""What a loaded plan's split knows of its devices is theirs, whichever the plan leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpubalance.jobs.plan.plan import plan
from gpubalance.planning.fixed_costs import fixed_samples
from gpubalance.planning.model import Curve
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.planning import PlanRequest
from gpubalance.training.split import Split, load_plan
from tests.jobs.probes import QUICK, devices_of, probe_of
from tests.support.told import refused

CURVES = tuple(((8, 0.01 + 0.001 * n), (64, 0.05 + 0.003 * n)) for n in range(4))
LIMITS = (100, 200, 300, 400)


def planned(batches: tuple[int, ...]) -> Plan:
    """A plan of four devices, which hold and take unlike much."""
    devices = devices_of(QUICK, QUICK, QUICK, QUICK)
    made = plan(probe_of(devices), devices, PlanRequest(global_batch=256))
    shares = []
    for share, batch, limit in zip(made.shares, batches, LIMITS, strict=True):
        own = {"batch": batch, "micro_batch": batch, "limit": limit}
        shares.append(share.model_copy(update=own))
    changes = {"batches": batches, "micro_batches": batches, "curves": CURVES}
    return made.model_copy(update=changes | {"shares": tuple(shares)})


@pytest.mark.filterwarnings("ignore:.*is of simulated devices")
@pytest.mark.parametrize(
    "batches", [(64, 64, 64, 64), (0, 64, 32, 16), (64, 0, 32, 0), (0, 0, 0, 8)]
)
def test_limits_and_fixed_costs_are_of_devices_in_use(batches: tuple[int, ...]) -> None:
    split = load_plan(planned(batches))
    used = [number for number, batch in enumerate(batches) if batch]
    assert [device.index for device in split.devices] == used
    assert list(split.batches) == [batches[number] for number in used]
    assert list(split.limits) == [LIMITS[number] for number in used]
    assert list(split.fixed_samples) == [
        fixed_samples(Curve.through(CURVES[number]), batches[number]) for number in used
    ]


def test_without_a_plan_only_what_is_taken_in_parts_is_known_to_fit() -> None:
    split = Split(batches=[0, 8, 6, 4], micro_batches=[0, 4, 6, 1], simulate=4)
    assert split.limits == (4, None, 1)
    assert split.shares == BatchSplit((8, 6, 4), (4, 6, 1))


def test_a_fit_has_one_monitor_of_its_own_split(monkeypatch: Any) -> None:
    split = Split(batches=[8, 4], simulate=2)
    steps: Any = SimpleNamespace(monitor=None)
    monkeypatch.setattr(split, "functions_called_here", lambda _: steps)
    first, second = (SimpleNamespace(model=None, number=n) for n in range(2))
    for monitor in (first, first):  # of two fits, or told twice
        split.stamp_for(monitor)
    assert steps.monitor is first
    with refused("a fit takes one monitor, and got two"):
        split.stamp_for(second)
    assert steps.monitor is first
    monkeypatch.setattr(split, "functions_called_here", lambda _: None)
    with refused("the monitor's split is not what trains the model"):
        split.stamp_for(first)
