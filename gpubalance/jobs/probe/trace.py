"""A profiler trace of a device alone, after its probe."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError, Interrupted
from gpubalance.jobs.measure.trace import not_traced, trace
from gpubalance.jobs.probe.bench import Bench
from gpubalance.results.common import Warning_
from gpubalance.settings.shares import Shares


def trace_alone(bench: Bench, batch: int) -> Warning_ | None:
    """Traces steps at a batch that trains; see `trace`. Raises Interrupted."""
    tracing, device = bench.request.tracing, bench.device
    if tracing is None:
        return None
    try:
        bench.ready(last=True)
    except Interrupted:
        raise
    except GpubalanceError as error:  # the time limit too: nothing that was asked for is missing but the trace
        return not_traced(error, f"{device.label}: ")
    warning = trace(bench.party, Shares((batch,)), tracing.of(device), bench.watch)
    return warning and warning.model_copy(update={"message": f"{device.label}: {warning.message}"})
