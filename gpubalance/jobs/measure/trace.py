"""Makes a profiler trace of some steady steps, after all measuring."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import GpubalanceError
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.warnings import warning
from gpubalance.results.common import Warning_
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.requests import Tracing
from gpubalance.settings.shares import Shares
from gpubalance.workers.party import Party


def trace(party: Party, split: Shares, tracing: Tracing, watch: Watch) -> Warning_ | None:
    """Traces steps of a split that has been measured; returns a warning if part of the trace is missing.

    For a split over hosts the first device is traced. Tracing comes last, as a profiler slows steps down, even later
    ones. None of its errors ends the command: what was measured is worth more.
    """
    try:
        watch(tracing_told(tracing, str(split), party.ask(lambda worker: worker.devices)[:1]))
        missing = party.ask(lambda worker: worker.trace(split, tracing))
    except GpubalanceError as error:
        return not_traced(error)
    return None if missing is None else without_gpu(missing)


def tracing_told(tracing: Tracing, what: str, devices: Sequence[Device]) -> Doing:
    """The event that says what is traced, and for other hosts' devices on which hosts the trace is written."""
    there = f", into {tracing.folder} on {', '.join(map(str, hosts_of(devices)))}" if are_reached() else ""
    return Doing(f"tracing {tracing.steps} steps of {what}{there}", stays=bool(there))


def without_gpu(missing: str, where: str = "") -> Warning_:
    """The warning that a GPU's part of a trace is missing, and why."""
    return warning("trace-without-gpu", where=where, missing=missing)


def not_traced(error: GpubalanceError, where: str = "") -> Warning_:
    """The warning that there is no trace."""
    advice = error.remedy or "run it again with another --trace DIR, which does not touch what was measured"
    return warning("not-traced", where=where, why=error.message, advice=advice)
