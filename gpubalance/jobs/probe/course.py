"""The course of a probe: queues of devices at the same time, in each one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.events import DeviceDone, Doing, PhaseBegun
from gpubalance.jobs.measure.trace import not_traced, trace
from gpubalance.jobs.probe.device_probe import device_probe
from gpubalance.jobs.probe.devices import ProbedDevices
from gpubalance.jobs.probe.failures import nothing_fits, what_failed
from gpubalance.jobs.probe.order import phase_names
from gpubalance.jobs.probe.pipeline import compare_pipeline
from gpubalance.jobs.probe.probed_device import ProbedDevice
from gpubalance.jobs.probe.with_xla import time_with_xla
from gpubalance.results.probe import not_probed_text
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.system.signals import signals_held


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
        probed.bench.party.end()
        devices.left.end(probed.number)
        devices.watch(DeviceDone(probed.device))


def _trace(probed: ProbedDevice) -> None:
    """Traces steps at a batch that trains, if that is asked for."""
    bench = probed.bench
    tracing = bench.request.tracing
    sensible = device_probe(probed).sensible
    if sensible is None or tracing is None:
        return
    try:
        bench.ensure_worker(last=True)
        splits = {0: BatchSplit((sensible.batch,))}
        probed.trace_warnings = trace(
            bench.party, splits, tracing, bench.watch, apart=True
        )
    # The time limit too: nothing that was asked for is missing but the trace.
    except GpubalanceError as error:
        probed.trace_warnings = [not_traced(error, f"{probed.device.label}: ")]
