"""`independent`: a model of its own on each device, all at once, interleaved with each alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from gpubalance.devices.machine import environment
from gpubalance.errors import (
    BadInput,
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.jobs.endings import attach_partial, one_error
from gpubalance.jobs.events import Doing, PhaseBegun, Starting, Watch, one_at_a_time
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.joint import InterleavedWindows
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.warnings import (
    of_figures,
    resumed,
    telemetry_ended,
    too_slow_windows,
)
from gpubalance.jobs.measure.window import MeasuredTogether, Workload
from gpubalance.jobs.saved import KeptRules, best_joint_run
from gpubalance.numbers.stats import Ratio, interval_of_sum, ratio
from gpubalance.results.common import Model, Throughput, Warning_, now
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel
from gpubalance.results.probe import Failure
from gpubalance.results.warnings import TOGETHER, warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.requests import IndependentRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build
from gpubalance.workers.worker_group import WorkerGroup


@dataclass
class OwnReplica:
    """A device and its model, which is measured `alone`, and `at_once` with those of the others.

    `number` is its place in the request; `error` is why it dropped out.
    """

    number: int
    device: Device
    model: str
    batch: int
    alone: Workload
    at_once: Workload
    error: GpubalanceError | None = None


def replicas_of(request: IndependentRequest) -> list[OwnReplica]:
    """Those of a request, in its order."""
    replicas = []
    for number, device in enumerate(request.devices):
        batch = request.batches[number]
        at_once = Workload(
            BatchSplit((batch,)),
            (device,),
            name="at once",
            from_input_pipeline=request.settings.data is not None,
            group=number,
            wants_stamps=False,
        )
        alone = replace(at_once, name="alone", is_baseline=True)
        model = request.models[number]
        replicas.append(OwnReplica(number, device, model, batch, alone, at_once))
    return replicas


@dataclass
class Found:
    """What was found of a request's devices so far, by the windows of the measurer."""

    request: IndependentRequest
    replicas: Sequence[OwnReplica]
    measurer: Measurer
    trace_warnings: Sequence[Warning_] = ()
    complete: bool = False

    @property
    def going(self) -> list[OwnReplica]:
        """The devices that have not failed."""
        return [replica for replica in self.replicas if replica.error is None]

    def refuse_too_slow(self, workloads: MeasuredTogether) -> None:
        """Raises UsageError if a device's first window alone is far from its profile."""
        workload = workloads[0]
        if len(workloads) > 1 or not workload.is_baseline:
            return
        fault = too_slow_windows(
            workload,
            self.measurer.windows[workload],
            self.request.settings_of(workload.group),
            self.request.joint,
        )
        if fault is not None:
            self.measurer.forget(workloads)
            raise fault

    def result(self) -> Independent | None:
        """The result of what was measured so far; None before the first timing."""
        request = self.request
        windows = self.measurer.windows
        replicas = self.replicas
        facts = self.measurer.facts
        measured = [
            workload for workload in self._workloads(replicas) if windows[workload]
        ]
        if not measured or not facts:
            return None
        origin_s = min(figures.began_s(windows[workload]) for workload in measured)
        model = None
        models = {own.model for own in facts.values()}
        if len(facts) == len(replicas) and len(models) == 1:
            model = facts[0].model
        at_once = [replica for replica in self.going if windows[replica.at_once]]
        solo_rates = [self._throughput(replica.alone).median for replica in at_once]
        own_models = tuple(self._own_model(replica, origin_s) for replica in replicas)
        return Independent(
            created=now(),
            settings=request.settings,
            environment=environment(request.driver),
            model=model,
            devices=request.devices,
            replicas=own_models,
            throughput=self._sum_of_rates(at_once),
            solo_sum=sum(solo_rates) if solo_rates else None,
            overlap_s=self.measurer.overlap_s,
            joint=self._joint(at_once, model),
            complete=self.complete,
            warnings=(
                *resumed(self.measurer.resumed.total()),
                *slower_together(own_models),
                *self._of_figures(),
                *telemetry_ended(self.measurer.telemetry_ended()),
                *self.trace_warnings,
            ),
        )

    @staticmethod
    def _workloads(replicas: Sequence[OwnReplica]) -> list[Workload]:
        """Each alone, then all at once."""
        alone = [replica.alone for replica in replicas]
        return alone + [replica.at_once for replica in replicas]

    def _throughput(self, workload: Workload) -> Throughput:
        times_s = figures.step_times_s(self.measurer.windows[workload])
        return figures.throughput_of(workload.split.global_batch, times_s)

    def _sum_of_rates(self, at_once: Sequence[OwnReplica]) -> Throughput | None:
        """What devices gave at once, added up; None if there are none."""
        if not at_once:
            return None
        rates = []
        for replica in at_once:
            times_s = figures.step_times_s(self.measurer.windows[replica.at_once])
            rates.append((self._throughput(replica.at_once).median, times_s))
        return Throughput(
            median=sum(rate for rate, _ in rates), ci95=interval_of_sum(rates)
        )

    def _joint(
        self, at_once: Sequence[OwnReplica], model: Model | None
    ) -> HeldAgainst | None:
        """The best kept run of one model on the devices that were measured at once."""
        devices = [replica.device for replica in at_once]
        if not devices or model is None:
            return None
        run = best_joint_run(devices, model, self.request.settings)
        if run is None:
            return None
        return HeldAgainst(**run.model_dump(include={*HeldAgainst.model_fields}))

    def _of_figures(self) -> list[Warning_]:
        windows = self.measurer.windows
        going = self.going
        known = [workload for workload in self._workloads(going) if windows[workload]]
        throttled: list[tuple[Device, tuple[str, ...]]] = []
        for replica in going:
            throttled += figures.throttled_gpus(
                replica.at_once.devices, windows[replica.at_once]
            )
        return of_figures(
            self.request.settings,
            throttled,
            [windows[workload] for workload in known],
            names=[
                f" of {workload.devices[0].label} {workload.name}" for workload in known
            ],
            steady=all(self.measurer.warm_up_of(workload).steady for workload in known),
        )

    def _own_model(self, replica: OwnReplica, origin_s: float) -> OwnModel:
        alone = replica.alone
        at_once = replica.at_once
        peaks = list(self.measurer.warm_up_of(alone).peaks)
        for workload in (alone, at_once):
            peaks += figures.peaks(self.measurer.windows[workload])
        known_peaks = [peak for peak in peaks if peak is not None]
        left = self._rate_left(replica)
        contention = None
        contention_ci95 = None
        if left is not None:
            contention = 1 - left.value
            if left.ci95 is not None:
                low, high = left.ci95
                contention_ci95 = (1 - high, 1 - low)
        solo = self._figures(alone, origin_s)
        return OwnModel(
            device=replica.number,
            model=replica.model,
            batch=replica.batch,
            contention=contention,
            contention_ci95=contention_ci95,
            memory_peak_bytes=max(known_peaks, default=None),
            failure=Failure.of(replica.error) if replica.error else None,
            **self._figures(at_once, origin_s),
            **{f"solo_{name}": figure for name, figure in solo.items()},
        )

    def _rate_left(self, replica: OwnReplica) -> Ratio | None:
        """What is left of a device's rate when all train; None if it was not measured so."""
        alone = self.measurer.windows[replica.alone]
        at_once = self.measurer.windows[replica.at_once]
        if not alone or not at_once:
            return None
        value = (
            self._throughput(replica.at_once).median
            / self._throughput(replica.alone).median
        )
        return ratio(value, figures.step_times_s(at_once), figures.step_times_s(alone))

    def _figures(self, workload: Workload, origin_s: float) -> dict[str, Any]:
        """What a device gave alone or at once, by the field of its record; None is unknown."""
        settings = self.request.settings
        windows = self.measurer.windows[workload]
        fields: dict[str, Any] = dict.fromkeys(
            ("throughput", "step_time_s", "input_wait_s")
        )
        fields["telemetry"] = self.measurer.sensors(workload).telemetry(origin_s)[0]
        if windows:
            fields["throughput"] = self._throughput(workload).median
            fields["step_time_s"] = figures.step_time(windows, origin_s)
            if settings.data is not None or settings.input == "host":
                fields["input_wait_s"] = figures.input_wait_s(windows)
        return fields


def independent(
    request: IndependentRequest, watch: Watch, journal: Journal
) -> Independent:
    """Trains the request's models, and reports what each device gives alone and at once.

    Windows go into the `journal`; those that are already in it are not measured again. The others
    go on when a device fails. Raises, with what was measured as `partial`: PartialResult, which
    names each device that failed, or the devices' own error if all failed alike; BadInput for a
    model that can't be trained, TimeLimitPassed, Interrupted.
    """
    report = one_at_a_time(watch)
    measuring = request.measuring
    journal.watch = report
    journal.report_resumed()
    report(PhaseBegun("independent"))
    builds = []
    for number in range(len(request.devices)):
        settings = request.settings_of(number)
        builds.append(
            Build(settings=settings, joint=request.joint, seed=measuring.seed)
        )
    with WorkerGroup(
        *([device] for device in request.devices),
        build=builds,
        purpose="independent",
        deadline_s=measuring.deadline_s,
        limit=TimeLimit(measuring.time_limit_s),
        report=lambda text: report(Starting(text)),
        kept_rules=KeptRules(journal),
    ) as worker_group:
        measurer = Measurer(worker_group, journal, report, workers_rest=True)
        found = Found(request, replicas_of(request), measurer)
        with attach_partial(found.result):
            measure_all(found)
        splits = {replica.number: replica.alone.split for replica in found.going}
        found.trace_warnings = trace(
            worker_group, splits, request.tracing, report, apart=True
        )
        failed = one_failure(found.replicas)
        found.complete = failed is None
    if failed is not None:
        failed.partial = found.result()
        raise failed
    # No device failed, so each has its windows
    return cast("Independent", found.result())


def measure_all(found: Found) -> None:
    """Measures each device alone and all at once, until all is known or no device is left.

    Raises BadInput, UsageError and TimeLimitPassed, no device's fault.
    """
    measurer = found.measurer
    measuring = found.request.measuring
    measurer.watch(Doing("warming up all devices at once"))
    try:
        measurer.warm_up_at_once([replica.alone for replica in found.replicas])
    except GpubalanceError as error:
        drop_out(found, error)
    while found.going:
        try:
            InterleavedWindows(
                measurer,
                alone_and_at_once(found.going),
                measuring,
                lambda window, what: f"measuring {what}, {window}",
                found.refuse_too_slow,
            ).measure()
        except GpubalanceError as error:
            drop_out(found, error)
        else:
            return


def drop_out(found: Found, error: GpubalanceError) -> None:
    """Goes on without the devices that failed; what all gave at once then no longer counts.

    Raises an error that is no device's fault.
    """
    measurer = found.measurer
    failures = measurer.worker_group.failures
    if error not in failures.values():
        raise error
    for number, failure in sorted(failures.items()):
        if isinstance(failure, BadInput | TimeLimitPassed):
            raise failure
        replica = found.replicas[number]
        replica.error = failure
        if isinstance(failure, OutOfMemory):
            replica.error = failure.fault or failure
            # Its memory will not hold its batch the next time either.
            if not measurer.windows[replica.alone]:
                measurer.journal.helps = False
        measurer.watch(Doing(f"{replica.device.label} dropped out: {failure.message}"))
    measurer.forget([replica.at_once for replica in found.replicas])


def alone_and_at_once(replicas: Sequence[OwnReplica]) -> list[MeasuredTogether]:
    """Each alone, and all at once if there are several."""
    interleaved: list[MeasuredTogether] = [(replica.alone,) for replica in replicas]
    if len(interleaved) > 1:
        interleaved.append(tuple(replica.at_once for replica in replicas))
    return interleaved


def one_failure(replicas: Sequence[OwnReplica]) -> GpubalanceError | None:
    """One error that names all failed devices, None if none failed.

    It is partial unless all devices failed alike.
    """
    failed = [(replica.device, replica.error) for replica in replicas if replica.error]
    if not failed:
        return None
    kinds = {type(error) for _, error in failed}
    if len(failed) < len(replicas) or len(kinds) > 1:
        return one_error(PartialResult, failed)
    (kind,) = kinds
    if kind is OutOfMemory:
        kind = NothingFits
    return one_error(kind, failed)


def slower_together(replicas: Sequence[OwnModel]) -> Iterator[Warning_]:
    """A warning if every device's steps take clearly longer at once than alone."""
    times = []
    for replica in replicas:
        if replica.contention is not None and replica.contention < 1:
            times.append(1 / (1 - replica.contention))
    if len(times) > 1 and min(times) > TOGETHER:
        yield warning("slower-together/independent", factor=min(times))
