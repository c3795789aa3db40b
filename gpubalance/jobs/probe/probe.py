"""The probe: measures every device alone, one after the other or several at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import DeviceDone, Doing, PhaseBegun, Watch, one_at_a_time
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.saved import save
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.measure.pipeline import held_against, measure_pipeline
from gpubalance.jobs.measure.trace import not_traced, trace
from gpubalance.jobs.plan.problem import check_asked
from gpubalance.jobs.probe.alone import Alone
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.order import phase_names, queues, stand_ins
from gpubalance.jobs.probe.result import device_probe, nothing_fits, taken_over, what_failed
from gpubalance.jobs.probe.warnings import probe_warnings
from gpubalance.render.probe import not_probed_text
from gpubalance.results.common import Warning_, now
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.run import InputPipeline
from gpubalance.results.warnings import warning
from gpubalance.settings.code import code_key
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.system.signals import signals_held
from gpubalance.workers.party import Party


def probe(
    request: ProbeRequest,
    watch: Watch,
    journal: Journal,
    limit: TimeLimit | None = None,
    following: Party | None = None,
) -> Probe:
    """Measures each of the request's devices alone, of equal ones the first. `limit` takes the
    place of the request's.

    `following` is the party that measures next: it loads TensorFlow when the last device begins.

    Each point and trial goes into the `journal`; those already in it are not measured again.
    Raises, with what was measured as `partial`: PartialResult if a worker died or a device failed
    and the others were measured, NothingFits if a device does not hold a single sample,
    EnvironmentFault if TensorFlow can use none, BadInput, TimeLimitPassed, Interrupted. Keeps the
    result, or the part, for `plan`.
    """
    check_asked(request)
    journal.watch = watch
    journal.tell_resumed()
    try:
        limit = limit or TimeLimit(request.time_limit_s)
        result = _Probing(request, journal, limit, watch, following).run()
    except GpubalanceError as error:
        if isinstance(error.partial, Probe):
            save(error.partial)
        raise
    journal.stays = save(result) is None
    return result


@dataclass
class _Probing:
    request: ProbeRequest
    journal: Journal
    limit: TimeLimit
    watch: Watch
    following: Party | None
    pipeline: InputPipeline | None = None
    warnings: list[Warning_] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        # An interrupt ends it for the threads, not for the caller.
        self.limit = copy(self.limit)
        # Now, before the user changes the file.
        self.code = code_key(request.settings.model, request.settings.data)
        self.watch = self.journal.watch = one_at_a_time(self.watch)
        verdicts = KeptVerdicts(self.journal) if self.following is None else self.following.verdicts
        beside = request, self.journal, verdicts, self.limit, self.watch
        self.all = [
            Alone(number, Bench(device, *beside)) for number, device in enumerate(request.devices)
        ]
        self.stand_ins = [self.all[number] for number in stand_ins(request)]
        self.queues = [[self.all[number] for number in queue] for queue in queues(request)]
        for queue in self.queues:
            probed = [alone for alone in queue if self._stand_in(alone) is alone]
            for alone, then in pairwise(probed):
                alone.bench.following = then.bench.party
            if len(self.queues) == 1 and not request.parallel:
                probed[-1].bench.following = self.following

    def _stand_in(self, alone: Alone) -> Alone:
        """The device that is probed for this one: itself, or an equal one before it."""
        return self.stand_ins[alone.number]

    def run(self) -> Probe:
        """Measures all devices; an error that ends it early carries what was measured."""
        with attach_partial(self._partial):
            try:
                self._measure()
                self._measure_pipeline()
            finally:
                for alone in self.all:
                    alone.bench.party.end()
            failed = what_failed(self.all)
            if failed is not None:
                raise failed
            return self._result()

    def _measure(self) -> None:
        """Measures the queues at the same time, each in a thread of its own."""
        with ThreadPoolExecutor(len(self.queues)) as threads:
            try:
                # The end of the pool does not wait for a thread whose start was interrupted.
                with signals_held():
                    running = [threads.submit(self._measure_queue, queue) for queue in self.queues]
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self.limit.end()
                for alone in self.all:
                    alone.bench.party.kill()
                raise

    def _measure_queue(self, queue: Sequence[Alone]) -> None:
        """Measures devices one after the other, but for those that equal one whose probe ended."""
        for alone in queue:
            equal = self._stand_in(alone)
            if equal.ended:
                text = not_probed_text(alone.device.label, equal.device.label)
                self.watch(Doing(text, stays=True))
                continue
            self.limit.check()
            self.watch(PhaseBegun(phase_names(self.request)[alone.number]))
            device = f"{alone.device.label} {alone.device.name}"
            which = f"{alone.number + 1} of {len(self.all)}"
            model = self.request.settings.model
            self.watch(Doing(f"measuring {device} alone ({which}), model {model}"))
            self._measure_alone(alone)

    def _measure_alone(self, alone: Alone) -> None:
        """Measures a device. Its own error is kept with what was found before.

        One that ends the probe is raised.
        """
        began_s = time.monotonic()
        alone.began = True
        try:
            alone.probe()
            alone.ended = True
            alone.error = nothing_fits(alone)
            self._trace(alone)
        except TimeLimitPassed:
            raise
        except (EnvironmentFault, PartialResult, DeadlinePassed) as error:
            alone.error = error
        finally:
            alone.elapsed_s = time.monotonic() - began_s
            alone.bench.party.end()
            self.watch(DeviceDone(alone.device))

    def _trace(self, alone: Alone) -> None:
        """Traces steps at a batch that trains, if that is asked for."""
        tracing = self.request.tracing
        sensible = device_probe(alone).sensible
        if sensible is None or tracing is None:
            return
        try:
            alone.bench.ready(last=True)
            splits = {0: Shares((sensible.batch,))}
            alone.trace_warnings = trace(alone.bench.party, splits, tracing, self.watch, apart=True)
        # The time limit too: nothing that was asked for is missing but the trace.
        except GpubalanceError as error:
            alone.trace_warnings = [not_traced(error, f"{alone.device.label}: ")]

    def _measure_pipeline(self) -> None:
        """Measures the user's input pipeline, unless a balance follows, which does so itself."""
        if self.following is not None or self.request.settings.data is None:
            return
        bests = [record.solo_best for record in self._records() if record.solo_best is not None]
        if len(bests) < len(self.all):
            return
        party = self.all[-1].bench.party
        global_batch = sum(best.batch for best in bests)
        solo_sum = sum(best.throughput for best in bests)
        try:
            pipeline = measure_pipeline(party, global_batch, self.watch)
            self.pipeline = held_against(pipeline, None, solo_sum)
        except TimeLimitPassed:
            raise
        except GpubalanceError as error:  # the devices are measured anyway
            advice = error.remedy or "gpubalance run --data measures it with a split"
            self.warnings.append(warning("pipeline-unknown", why=error.message, advice=advice))

    def _partial(self) -> Probe | None:
        if any(alone.points or alone.ended for alone in self.all):
            return self._result()
        return None

    def _records(self) -> tuple[DeviceProbe, ...]:
        """What was found of each device so far, itself or by one that equals it."""
        records = []
        for alone in self.all:
            equal = self._stand_in(alone)
            if alone.began:
                records.append(device_probe(alone))
            elif equal.ended:
                records.append(taken_over(alone, equal))
        return tuple(records)

    def _result(self) -> Probe:
        request, records = self.request, self._records()
        facts = next((alone.bench.facts for alone in self.all if alone.bench.facts), None)
        return Probe(
            created=now(),
            settings=request.settings,
            code=self.code,
            own_batch=facts.own_batch if facts else None,
            environment=environment(request.driver) if facts else None,
            model=facts.model if facts else None,
            devices=request.devices,
            batch_multiple=request.batch_multiple,
            margin_bytes=request.margin_bytes,
            max_batch=request.max_batch,
            parallel=request.parallel,
            probes=records,
            pipeline=self.pipeline,
            complete=len(records) == len(self.all) and all(record.complete for record in records),
            warnings=(*probe_warnings(request, self.all, facts), *self.warnings),
        )
