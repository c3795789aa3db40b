"""Makes a profiler trace of some steady steps, after all measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import GpubalanceError
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.common import Warning_
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.measuring import Tracing
from gpubalance.workers.messages import Trace, Traced
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup


def trace(
    worker_group: WorkerGroup,
    splits: Mapping[int, BatchSplit],
    tracing: Tracing | None,
    watch: Watch,
    *,
    apart: bool = False,
) -> list[Warning_]:
    """Traces steps of splits that were measured, if asked for; a warning for each missing part.

    `splits` has those of the groups that trained them, by number; traced `apart` each has its
    device's name. Of a split over hosts the first device is traced. Tracing comes last, as a
    profiler slows steps down, even later ones. None of its errors ends the command: what was
    measured is worth more.
    """
    if tracing is None or not splits:
        return []
    devices = {number: worker_group.groups[number][0] for number in splits}
    _report(splits, tracing, list(devices.values()), watch)

    def traced(number: int, worker: Worker) -> str | None:
        own = tracing.of(devices[number]) if apart else tracing
        return worker.ask(Trace(split=splits[number], tracing=own), Traced).missing

    missing = worker_group.each(traced, list(splits))
    where = dict.fromkeys(splits, "")
    if apart:
        where = {number: f"{device.label}: " for number, device in devices.items()}
    warnings = [
        not_traced(error, where[number])
        for number, error in worker_group.failures.items()
    ]
    for number, why in missing.items():
        if why is not None:
            warnings.append(
                warning("trace-without-gpu", where=where[number], missing=why)
            )
    return warnings


def _report(
    splits: Mapping[int, BatchSplit],
    tracing: Tracing,
    devices: Sequence[Device],
    watch: Watch,
) -> None:
    what = "each device, at once" if len(splits) > 1 else str(*splits.values())
    text = f"tracing {tracing.steps} steps of {what}"
    if are_reached():
        hosts = ", ".join(map(str, hosts_of(devices)))
        text += f", into {tracing.folder} on {hosts}"
    watch(Doing(text, stays=are_reached()))


def not_traced(error: GpubalanceError, where: str) -> Warning_:
    """The warning that there is no trace."""
    advice = error.remedy
    if not advice:
        advice = (
            "the measurement is valid, only the trace is missing: run it again with "
            "another --trace DIR"
        )
    return warning("not-traced", where=where, why=error.message, advice=advice)
