"""`probe` as a whole: its devices in queues, each measured alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import DeviceDone, Doing, PhaseBegun, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.measure.input_pipeline import held_against, measure_input_pipeline
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.trace import not_traced, trace
from gpubalance.jobs.plan.problem import check_asked
from gpubalance.jobs.probe.attempts import measure_point
from gpubalance.jobs.probe.devices import ProbedDevices, phase_names
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.jobs.probe.probed_device import ProbedDevice, device_probe
from gpubalance.jobs.probe.result import (
    facts_of,
    nothing_fits,
    result_of,
    result_so_far,
    what_failed,
)
from gpubalance.jobs.saved import save
from gpubalance.planning.curve import wanted_precision
from gpubalance.results.probe import CurvePoint, Probe, not_probed_text
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit, signals_held
from gpubalance.workers.worker_group import WorkerGroup


def probe(
    request: ProbeRequest,
    watch: Watch,
    journal: Journal,
    limit: TimeLimit | None = None,
    next_group: WorkerGroup | None = None,
) -> Probe:
    """Measures each of the request's devices alone, of equal ones the first.

    `limit` takes the place of the request's.

    `next_group` is the worker group that measures next: it loads TensorFlow when the last device
    begins.

    Each point and trial goes into the `journal`; those already in it are not measured again.
    Raises, with what was measured as `partial`: PartialResult if a worker died or a device failed
    and the others were measured, NothingFits if a device does not hold a single sample,
    EnvironmentFault if TensorFlow can use none, BadInput, TimeLimitPassed, Interrupted. Keeps the
    result, or the part, for `plan`.
    """
    check_asked(request)
    journal.watch = watch
    journal.report_resumed()
    try:
        limit = limit or TimeLimit(request.time_limit_s)
        devices = ProbedDevices(request, journal, limit, watch, next_group)
        with attach_partial(lambda: result_so_far(devices)):
            measure_all(devices)
            result = result_of(devices)
    except GpubalanceError as error:
        if isinstance(error.partial, Probe):
            save(error.partial)
        raise
    journal.stays = save(result) is None
    return result


def measure_all(devices: ProbedDevices) -> None:
    """Measures the devices and their input pipeline, and ends all workers.

    Raises one error for all devices that failed, after the others were measured.
    """
    try:
        _measure_queues(devices)
        time_with_xla(devices)
        compare_pipeline(devices)
    finally:
        devices.end()
    failed = what_failed(devices.all)
    if failed is not None:
        raise failed


def _measure_queues(devices: ProbedDevices) -> None:
    """Measures the queues at the same time, each in a thread of its own."""
    queues = devices.queues
    with ThreadPoolExecutor(len(queues)) as threads:
        try:
            # The end of the pool does not wait for a thread whose start was interrupted.
            with signals_held():
                running = [
                    threads.submit(_measure_queue, devices, queue) for queue in queues
                ]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            devices.kill()
            raise


def _measure_queue(devices: ProbedDevices, queue: Sequence[ProbedDevice]) -> None:
    """Measures devices one after the other, but for those that equal one whose probe ended."""
    request = devices.request
    for probed in queue:
        equal = devices.stand_in(probed)
        if equal.ended:
            text = not_probed_text(probed.device.label, equal.device.label)
            devices.watch(Doing(text, stays=True))
            continue
        devices.limit.check()
        devices.watch(PhaseBegun(phase_names(request)[probed.number]))
        device = f"{probed.device.label} {probed.device.name}"
        which = f"{probed.number + 1} of {len(devices.all)}"
        model = request.settings.model
        devices.watch(Doing(f"measuring {device} alone ({which}), model {model}"))
        _measure(devices, probed)


def _measure(devices: ProbedDevices, probed: ProbedDevice) -> None:
    """Measures a device. Its own error is kept with what was found before.

    One that ends the probe is raised.
    """
    began_s = time.monotonic()
    probed.began = True
    devices.left.begin(probed.number)
    try:
        probed.probe()
        probed.ended = True
        probed.error = nothing_fits(probed)
        _trace(probed)
    except TimeLimitPassed:
        raise
    except (EnvironmentFault, PartialResult, DeadlinePassed) as error:
        probed.error = error
    finally:
        probed.elapsed_s = time.monotonic() - began_s
        probed.probe_worker.worker_group.end()
        devices.left.end(probed.number)
        devices.watch(DeviceDone(probed.device))


def _trace(probed: ProbedDevice) -> None:
    """Traces steps at a batch that trains, if that is asked for."""
    probe_worker = probed.probe_worker
    tracing = probe_worker.request.tracing
    sensible = device_probe(probed).sensible
    if sensible is None or tracing is None:
        return
    try:
        probe_worker.ensure_worker(last=True)
        splits = {0: BatchSplit((sensible.batch,))}
        probed.trace_warnings = trace(
            probe_worker.worker_group, splits, tracing, probe_worker.watch, apart=True
        )
    # The time limit too: nothing that was asked for is missing but the trace.
    except GpubalanceError as error:
        probed.trace_warnings = [not_traced(error, f"{probed.device.label}: ")]


def compare_pipeline(devices: ProbedDevices) -> None:
    """Measures the pipeline of the user's data, if all devices have been measured.

    A balance that follows does so itself.
    """
    if devices.next_group is not None or devices.request.settings.data is None:
        return
    bests = [
        record.solo_best for record in devices.records() if record.solo_best is not None
    ]
    if len(bests) < len(devices.all):
        return
    probe_worker = devices.all[-1].probe_worker
    worker_group = probe_worker.worker_group
    global_batch = sum(best.batch for best in bests)
    facts = facts_of(devices)
    if facts is not None and facts.samples is not None:
        global_batch = min(global_batch, facts.samples)
    solo_sum = sum(best.throughput for best in bests)
    try:
        pipeline = measure_input_pipeline(worker_group, global_batch, devices.watch)
        devices.pipeline = held_against(pipeline, None, solo_sum)
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:  # the devices are measured anyway
        advice = error.remedy or "gpubalance run --data measures it with a split"
        unknown = warning("pipeline-unknown", why=error.message, advice=advice)
        devices.pipeline_warnings.append(unknown)


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
    probe_worker = replace(
        probed.probe_worker, request=asked, next_group=None, deaths=[]
    )
    probe_worker.facts = probed.probe_worker.facts
    what = f"{probed.device.label} at batch {batch} with XLA, Keras' default on one GPU"
    devices.watch(Doing(f"timing {what}"))
    try:
        probed.with_xla = probe_worker.get_or_make(
            "with XLA", CurvePoint, partial(_measured, probe_worker, batch)
        )
    except TimeLimitPassed:
        raise
    except GpubalanceError as error:  # the devices are measured anyway
        devices.watch(Doing(f"not timed: {what}: {error.message}", stays=True))
    finally:
        probe_worker.worker_group.end()


def _measured(probe_worker: ProbeWorker, batch: int) -> CurvePoint:
    rule = StoppingRule.of_point(probe_worker.request.duration_s).until(
        wanted_precision(batch, batch)
    )
    probe_worker.ensure_worker(last=True)
    with probe_worker.worker() as worker:
        point, _ = measure_point(probe_worker, worker, batch, rule, first=False)
    return point
