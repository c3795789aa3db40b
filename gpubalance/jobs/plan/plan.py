"""`plan`: computes the best split from a probe, and what it should give. No device is used."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.jobs.plan.problem import best_split, find_probes, loads_of, problem_of
from gpubalance.jobs.plan.record import plan_of
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.settings.device import Device
from gpubalance.settings.requests import PlanRequest


def plan(probe: Probe, devices: Sequence[Device], request: PlanRequest) -> Plan:
    """The best split of the probe's devices. Raises what `find_probes` and `best_split` do."""
    loads = loads_of(probe, find_probes(probe, devices), request)
    problem = problem_of(loads, probe, request)
    return plan_of(best_split(problem), problem, probe, devices, request)
