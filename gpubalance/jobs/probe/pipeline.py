"""The user's input pipeline, measured beside what the devices give alone."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError, TimeLimitPassed
from gpubalance.jobs.measure.input_pipeline import held_against, measure_input_pipeline
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.results.warnings import warning


def compare_pipeline(devices: ProbedDevices) -> None:
    """Measures the pipeline of the user's data, if all devices have been measured.

    A balance that follows does so itself.
    """
    if devices.next_party is not None or devices.request.settings.data is None:
        return
    bests = [
        record.solo_best for record in devices.records() if record.solo_best is not None
    ]
    if len(bests) < len(devices.all):
        return
    bench = devices.all[-1].bench
    party = bench.party
    global_batch = sum(best.batch for best in bests)
    if bench.facts is not None and bench.facts.samples is not None:
        global_batch = min(global_batch, bench.facts.samples)
    solo_sum = sum(best.throughput for best in bests)
    try:
        pipeline = measure_input_pipeline(party, global_batch, devices.watch)
        devices.pipeline = held_against(pipeline, None, solo_sum)
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:  # the devices are measured anyway
        advice = error.remedy or "gpubalance run --data measures it with a split"
        unknown = warning("pipeline-unknown", why=error.message, advice=advice)
        devices.pipeline_warnings.append(unknown)
