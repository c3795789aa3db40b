"""The best device once as Keras would run it alone: on one GPU it uses XLA by itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpubalance.errors import GpubalanceError, TimeLimitPassed
from gpubalance.jobs.events import Doing
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.device_probe import device_probe
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.jobs.probe.point import measure_point
from gpubalance.planning.curve import wanted_precision
from gpubalance.results.probe import CurvePoint


def time_with_xla(devices: ProbedDevices) -> None:
    """Times the best batch of the best device with XLA, unless all was measured with it.

    Where Keras would use none, nothing; what does not train with XLA has no such time.
    """
    request = devices.request
    bests = []
    for probed in devices.all:
        best = device_probe(probed).solo_best
        if best is not None:
            bests.append((best, probed))
    if request.settings.xla or not bests:
        return
    best, probed = max(bests, key=lambda pair: pair[0].throughput)
    batch = best.batch
    if not probed.device.gets_xla:
        return
    settings = request.settings.model_copy(update={"xla": True})
    asked = request.model_copy(update={"settings": settings, "for_split": False})
    bench = replace(probed.bench, request=asked, next_party=None, deaths=[])
    what = f"{probed.device.label} at batch {batch} with XLA, as Keras runs one GPU by itself"
    devices.watch(Doing(f"timing {what}"))
    try:
        probed.with_xla = bench.get_or_make(
            "with XLA", CurvePoint, partial(_measured, bench, batch)
        )
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:  # the devices are measured anyway
        devices.watch(Doing(f"not timed: {what}: {error.message}", stays=True))
    finally:
        bench.party.end()


def _measured(bench: Bench, batch: int) -> CurvePoint:
    rule = StoppingRule.of_point(bench.request.duration_s).until(
        wanted_precision(batch, batch)
    )
    bench.ensure_worker(last=True)
    with bench.worker() as worker:
        point, _ = measure_point(bench, worker, batch, rule, first=False)
    return point
