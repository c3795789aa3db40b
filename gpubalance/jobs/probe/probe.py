"""The probe: measures every device alone, one after the other or all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import pairwise

from gpubalance.errors import (
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import DeviceDone, Doing, PhaseBegun, Watch, one_at_a_time
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.journals import journal_of, tell_resumed
from gpubalance.jobs.keep.saved_probes import save
from gpubalance.jobs.measure.pipeline import ceiling
from gpubalance.jobs.measure.warnings import balance_refuses, batches_differ
from gpubalance.jobs.partial import giving
from gpubalance.jobs.probe.alone import Alone
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.halt import Halt
from gpubalance.jobs.probe.queues import phase_names, queues
from gpubalance.jobs.probe.result import device_probe, nothing_fits, what_failed
from gpubalance.jobs.probe.trace import trace_alone
from gpubalance.jobs.probe.warnings import device_warnings, parallel_warning, pipeline_unknown
from gpubalance.results.common import Warning_, now
from gpubalance.results.probe import Probe
from gpubalance.results.run import Pipeline
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.code import code_key
from gpubalance.workers.party import Party
from gpubalance.workers.signals import signals_held


def probe(
    request: ProbeRequest,
    driver: str | None,
    watch: Watch,
    journal: Journal | None = None,
    limit: TimeLimit | None = None,
    following: Party | None = None,
) -> Probe:
    """Measures each of the request's devices alone. `driver` is recorded; `limit` takes the place of the request's.

    `following` is the party that measures next: it loads TensorFlow when the last device begins.

    Each point and trial goes into the `journal`, or into one of its own; those already in it are not measured again.
    Raises, with what was measured as `partial`: PartialResult if a worker died or a device failed and the others were
    measured, NothingFits if a device does not hold a single sample, EnvironmentFault if TensorFlow can use none,
    BadInput, TimeLimitPassed, Interrupted. Keeps the result, or the part, for `plan`.
    """
    if journal is None:
        with journal_of(request, driver, resume=False) as own:
            return probe(request, driver, watch, own, limit, following)
    journal.tell = lambda text: watch(Doing(text))
    tell_resumed(journal, watch)
    try:
        limit = limit or TimeLimit(request.time_limit_s)
        result = _Probing(request, driver, journal, limit, watch, following).run()
    except GpubalanceError as error:
        if isinstance(error.partial, Probe):
            save(error.partial)
        raise
    if save(result) is None:
        journal.keep()
    return result


def _probe_alone(alone: Alone) -> None:
    """Measures a device. Its own error is kept with what was found before; an error that ends the probe is raised."""
    started = time.monotonic()
    alone.began = True
    try:
        alone.probe()
        alone.ended = True
        alone.error = nothing_fits(alone)
        sensible = device_probe(alone).sensible
        if sensible is not None:
            alone.trace_warning = trace_alone(alone.bench, sensible.batch)
    except TimeLimitPassed:
        raise
    except (EnvironmentFault, PartialResult, DeadlinePassed) as error:
        alone.error = error
    finally:
        alone.elapsed_s = time.monotonic() - started
        alone.bench.party.end()
        alone.bench.watch(DeviceDone(alone.bench.device))


class _Probing:
    def __init__(
        self,
        request: ProbeRequest,
        driver: str | None,
        journal: Journal,
        limit: TimeLimit,
        watch: Watch,
        following: Party | None,
    ) -> None:
        self._request = request
        self._driver = driver
        self._halt = Halt(limit)
        self._code = code_key(request.settings.model, request.settings.data)  # now, before the user changes the file
        self._watch = one_at_a_time(watch)
        self._all = [
            Alone(number, Bench(number, request, journal, self._halt, self._watch))
            for number in range(len(request.devices))
        ]
        self._has_following = following is not None
        self._pipeline: Pipeline | None = None
        self._pipeline_warnings: list[Warning_] = []
        self._queues = [[self._all[number] for number in queue] for queue in queues(request)]
        for queue in self._queues:
            for one, then in pairwise(queue):
                one.bench.following = then.bench.party
        if len(self._queues) == 1 and not request.parallel:
            self._all[-1].bench.following = following

    def run(self) -> Probe:
        """Measures all devices; an error that ends it early carries what was measured."""
        with giving(self._partial):
            try:
                self._at_once() if self._request.parallel or len(self._queues) > 1 else self._in_turn()
                self._measure_pipeline()
            finally:
                for one in self._all:
                    one.bench.party.end()
            failed = what_failed(self._all)
            if failed is not None:
                raise failed
            return self._result()

    def _in_turn(self) -> None:
        for name, one in zip(phase_names(self._request), self._all, strict=True):
            self._watch(PhaseBegun(name))
            self._announce(one)
            _probe_alone(one)

    def _measure_pipeline(self) -> None:
        """Measures the user's input pipeline, unless a balance follows, which does so at its own global batch."""
        bests = [device_probe(one).solo_best for one in self._all] if self._request.settings.data else []
        known = [best for best in bests if best is not None]
        if self._has_following or len(known) < len(self._all):
            return
        party, global_batch = self._all[-1].bench.party, sum(best.batch for best in known)
        try:
            solo_sum = sum(best.throughput for best in known)
            self._pipeline = ceiling(party, global_batch, self._watch, solo_sum=solo_sum)
        except TimeLimitPassed:
            raise
        except GpubalanceError as error:  # the devices are measured anyway
            self._pipeline_warnings.append(pipeline_unknown(error))

    def _announce(self, one: Alone) -> None:
        device = one.bench.device
        which = f"{one.number + 1} of {len(self._all)}"
        self._watch(
            Doing(f"measuring {device.label} {device.name} alone ({which}), model {self._request.settings.model}")
        )

    def _at_once(self) -> None:
        (name,) = phase_names(self._request)
        self._watch(PhaseBegun(name))

        def probe_each(queue: Sequence[Alone]) -> None:
            for one in queue:
                self._halt.check()
                self._announce(one)
                _probe_alone(one)

        with ThreadPoolExecutor(len(self._queues)) as threads:
            try:
                with signals_held():  # the end of the pool does not wait for a thread whose start was interrupted
                    running = [threads.submit(probe_each, queue) for queue in self._queues]
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self._halt.interrupted.set()
                for one in self._all:
                    one.bench.party.kill()
                raise

    def _partial(self) -> Probe | None:
        return self._result() if any(one.points or one.ended for one in self._all) else None

    def _result(self) -> Probe:
        request = self._request
        facts = next((one.bench.facts for one in self._all if one.bench.facts), None)
        warnings = [warning for one in self._all for warning in device_warnings(one)]
        warnings += [one.trace_warning for one in self._all if one.trace_warning]
        warnings += self._pipeline_warnings
        warnings += [balance_refuses(facts.refused)] if facts and facts.refused else []
        if any(point.unlike for one in self._all for point in one.points.values()):
            warnings.append(batches_differ())
        return Probe(
            created=now(),
            settings=request.settings,
            code=self._code,
            environment=environment(facts, self._driver) if facts else None,
            model=facts.model if facts else None,
            devices=request.devices,
            batch_multiple=request.batch_multiple,
            margin_bytes=request.margin_bytes,
            max_batch=request.max_batch,
            parallel=request.parallel,
            probes=tuple(device_probe(one) for one in self._all if one.began),
            pipeline=self._pipeline,
            complete=all(one.ended and not one.errors for one in self._all),
            warnings=(*([parallel_warning()] if request.parallel and len(self._all) > 1 else []), *warnings),
        )
