"""Plans that are computed from profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.plan.plan import plan
from gpubalance.results.plan import Plan
from gpubalance.settings.device import Device
from gpubalance.settings.planning import PlanRequest
from tests.cli.program import QUICK_PAIR
from tests.jobs.probes import probe_of
from tests.support.altered import altered


def planned(
    devices: Sequence[Device] | None = None,
    settings: Mapping[str, Any] | None = None,
    **request: Any,
) -> Plan:
    """The plan for these devices, or the quick pair, as if measured with other settings."""
    devices = devices or simulated_devices(QUICK_PAIR)[0]
    made = plan(probe_of(devices), devices, PlanRequest(**request))
    return altered(made, settings=altered(made.settings, **(settings or {})))
