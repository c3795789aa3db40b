"""The result that a probe ends with, or has so far."""

from __future__ import annotations

from gpubalance.jobs.environment import environment
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.jobs.probe.warnings import probe_warnings
from gpubalance.results.common import now
from gpubalance.results.probe import Probe
from gpubalance.workers.messages import Ready


def result_so_far(devices: ProbedDevices) -> Probe | None:
    """The result of what was measured so far; None before the first point."""
    if any(probed.points or probed.ended for probed in devices.all):
        return result_of(devices)
    return None


def result_of(devices: ProbedDevices) -> Probe:
    """The result with what was found of each device."""
    request = devices.request
    records = devices.records()
    facts = _facts(devices)
    own_batch = None
    own_batch_stays = False
    samples = None
    software = None
    model = None
    if facts is not None:
        own_batch = facts.own_batch
        own_batch_stays = facts.own_batch_stays
        samples = facts.samples
        software = environment(request.driver)
        model = facts.model
    is_whole = len(records) == len(devices.all)
    warnings = [
        *probe_warnings(request, devices.all, facts),
        *devices.pipeline_warnings,
    ]
    return Probe(
        created=now(),
        settings=request.settings,
        code=devices.code,
        own_batch=own_batch,
        own_batch_stays=own_batch_stays,
        samples=samples,
        environment=software,
        model=model,
        devices=request.devices,
        batch_multiple=request.batch_multiple,
        margin_bytes=request.margin_bytes,
        max_batch=request.max_batch,
        parallel=request.parallel,
        probes=records,
        pipeline=devices.pipeline,
        complete=is_whole and all(record.complete for record in records),
        warnings=tuple(warnings),
    )


def _facts(devices: ProbedDevices) -> Ready | None:
    """What the first worker said of the model, None if none has."""
    for probed in devices.all:
        if probed.bench.facts is not None:
            return probed.bench.facts
    return None
