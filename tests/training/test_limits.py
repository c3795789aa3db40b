"""What a loaded plan's split knows of its devices is theirs, whichever the plan leaves out."""

from __future__ import annotations

import pytest

from gpubalance.planning.model import Curve, fixed_samples
from gpubalance.results.plan import Plan
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.training.split import Split, load_plan
from tests.jobs.probes import QUICK, devices_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.training.plans import planned

CURVES = tuple(((8, 0.01 + 0.001 * n), (64, 0.05 + 0.003 * n)) for n in range(4))
LIMITS = (100, 200, 300, 400)


def plan_of_four(batches: tuple[int, ...]) -> Plan:
    """A plan of four devices, which hold and take unlike much."""
    made = planned(devices_of(QUICK, QUICK, QUICK, QUICK), global_batch=256)
    shares = []
    for share, batch, limit in zip(made.shares, batches, LIMITS, strict=True):
        own = {"batch": batch, "micro_batch": batch, "limit": limit}
        shares.append(altered(share, **own))
    changes = {"batches": batches, "micro_batches": batches, "curves": CURVES}
    return altered(made, **changes, shares=tuple(shares))


@pytest.mark.filterwarnings("ignore:.*is for simulated devices")
@cases("batches", (64, 64, 64, 64), (0, 64, 32, 16), (64, 0, 32, 0), (0, 0, 0, 8))
def test_limits_and_fixed_costs_are_of_devices_in_use(batches: tuple[int, ...]) -> None:
    split = load_plan(plan_of_four(batches))
    used = [number for number, batch in enumerate(batches) if batch]
    assert [device.index for device in split.devices] == used
    assert list(split.batches) == [batches[number] for number in used]
    assert list(split.limits) == [LIMITS[number] for number in used]
    curves = [Curve.through(CURVES[number]) for number in used]
    assert list(split.fixed_samples) == list(map(fixed_samples, curves, split.batches))


def test_without_a_plan_only_what_is_taken_in_parts_is_known_to_fit() -> None:
    split = Split(batches=[0, 8, 6, 4], micro_batches=[0, 4, 6, 1], simulate=4)
    assert split.limits == (4, None, 1)
    assert split.shares == BatchSplit((8, 6, 4), (4, 6, 1))
