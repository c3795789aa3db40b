"""Makes a profiler trace of some steady steps, after all measuring."""

from __future__ import annotations

from collections.abc import Mapping

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import GpubalanceError
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.warnings import warning
from gpubalance.results.common import Warning_
from gpubalance.settings.device import hosts_of
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Trace, Traced
from gpubalance.workers.party import Party


def trace(
    party: Party,
    splits: Mapping[int, Shares],
    tracing: Tracing | None,
    watch: Watch,
    *,
    apart: bool = False,
) -> list[Warning_]:
    """Traces steps of splits that have been measured, if that is asked for; a warning for each part
    that is missing.

    `splits` has those of the party's groups, by their numbers; traced `apart` each has its device's
    name. Of a split over hosts the first device is traced. Tracing comes last, as a profiler slows
    steps down, even later ones. None of its errors ends the command: what was measured is worth
    more.
    """
    if tracing is None or not splits:
        return []
    firsts = {number: party.groups[number][0] for number in splits}
    where = {number: f"{device.label}: " if apart else "" for number, device in firsts.items()}
    own = {number: tracing.of(device) if apart else tracing for number, device in firsts.items()}
    what = "each device, at once" if len(splits) > 1 else str(*splits.values())
    hosts = ", ".join(map(str, hosts_of([*firsts.values()])))
    there = f", into {tracing.folder} on {hosts}" if are_reached() else ""
    watch(Doing(f"tracing {tracing.steps} steps of {what}{there}", stays=bool(there)))
    asked = {number: Trace(split=splits[number], tracing=own[number]) for number in splits}
    found = party.each(lambda number, worker: worker.ask(asked[number], Traced).missing, [*splits])
    return [
        *(not_traced(error, where[number]) for number, error in party.failures.items()),
        *(
            warning("trace-without-gpu", where=where[n], missing=why)
            for n, why in found.items()
            if why is not None
        ),
    ]


def not_traced(error: GpubalanceError, where: str = "") -> Warning_:
    """The warning that there is no trace."""
    advice = (
        error.remedy
        or "run it again with another --trace DIR, which does not touch what was measured"
    )
    return warning("not-traced", where=where, why=error.message, advice=advice)
