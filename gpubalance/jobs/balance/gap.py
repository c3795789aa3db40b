"""Why a run gave less than its devices give alone."""

from __future__ import annotations

from gpubalance.jobs.keep.probes import holds_nothing
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.results.gap import DeviceRun, SoloGap, divide_gap
from gpubalance.results.run import Run
from gpubalance.settings.batch_split import BatchSplit


def solo_gap(known: DeviceEstimates, split: BatchSplit, run: Run) -> SoloGap | None:
    """The parts of the difference; None if a device's best alone is unknown."""
    busy_s = {replica.device: replica.busy_s for replica in run.replicas}
    devices = []
    for device, probe in enumerate(known.probes):
        if probe.solo_best is None and not holds_nothing(probe):
            return None
        best = 0.0
        if probe.solo_best is not None:
            best = probe.solo_best.throughput
        alone_s = known.alone_s(device, split) + known.alone_update_s(device)
        batch = split.batches[device]
        devices.append(DeviceRun(best, batch, alone_s, busy_s.get(device, 0.0)))
    with_xla = sum((probe.alone or 0.0) for probe in known.probes)
    xla = with_xla - sum(device.solo_best for device in devices)
    return divide_gap(devices, run.step_time_s.median, run.slow_s, xla)
