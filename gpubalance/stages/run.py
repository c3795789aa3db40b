"""`run`: a split, trained for real, in turns with the even split."""

from __future__ import annotations

import math
import signal
from contextlib import closing
from dataclasses import dataclass, field

from gpubalance.config import Device, RunRequest
from gpubalance.devices.planned import check_model
from gpubalance.errors import GpubalanceError, Interrupted, OutOfMemory
from gpubalance.planning.split import even_split, split_text
from gpubalance.results.common import Model, Throughput, Warning_
from gpubalance.results.run import Baselines, Measurement, Run, SoloBest
from gpubalance.stages.environment import environment, now
from gpubalance.stages.events import Doing, SampleDone, TimeLeft, Watch, WindowDone
from gpubalance.stages.fitting import Rig, largest_even_share, nothing_fits
from gpubalance.stages.journal import Journal
from gpubalance.stages.kept import Kept, tell_resumed
from gpubalance.stages.lost import lost_gpus_told
from gpubalance.stages.sensors import Sensors
from gpubalance.stages.series import Series
from gpubalance.stages.trace import traced
from gpubalance.stages.warnings import PRECISE_ENOUGH, resumed, slowed_text, throttled, warnings
from gpubalance.time_limit import TimeLimit
from gpubalance.workers.messages import Sample
from gpubalance.workers.worker import Worker


@dataclass
class _Progress:
    """What is measured so far. A result can be made of it at any moment after the first window."""

    request: RunRequest
    rig: Rig
    own: Series
    kept: Kept
    even: Series | None = None
    solo: tuple[SoloBest, ...] | None = None
    warnings: list[Warning_] = field(default_factory=list)
    measured_again: bool = False
    complete: bool = False

    @property
    def series(self) -> list[tuple[str, Series]]:
        """Those that are measured in turns, by their names: "" is the run's own split."""
        return [("", self.own), *([("even", self.even)] if self.even else [])]

    @property
    def slowed(self) -> list[tuple[Device, tuple[str, ...]]]:
        """Each GPU that was throttled for a reason that passes, with NVML's reasons."""
        return self.own.sensors.slowed if self.own.sensors else []


def run(
    request: RunRequest,
    driver: str | None,
    watch: Watch,
    solo: tuple[SoloBest, ...] | None = None,
    planned: Model | None = None,
    journal: Journal | None = None,
) -> Run:
    """Trains with the request's split and reports what it gives. `driver` is recorded, `solo` it is held against,
    `planned` is the model that its plan is for. Each window goes into the `journal`, and those in it are not measured
    again.

    Devices with batch 0 are left out: an empty share is not a replica. Raises NothingFits with a split that does fit
    when a device runs out of memory. Every error after the first window carries what was measured as `partial`.
    """
    used, limit = without_empty_shares(request), TimeLimit(request.measuring.time_limit_s)
    tell_resumed(journal, watch)
    try:
        with lost_gpus_told(used.devices), closing(Rig(used, watch, limit)) as rig:
            check_model(planned, model_of(rig.worker))
            try:
                result = run_on(rig, request, driver, watch, solo, Kept(journal, watch))
            except OutOfMemory as error:
                rig.recover()
                raise nothing_fits(error, rig, used) from None
            return traced(result, rig.worker, used, watch)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(interrupt) from None


def model_of(worker: Worker) -> Model:
    """What an open worker trains."""
    facts = worker.facts
    return Model(name=facts.model, parameters=facts.parameters, gradient_bytes=facts.gradient_bytes)


def run_on(
    rig: Rig,
    request: RunRequest,
    driver: str | None,
    watch: Watch,
    solo: tuple[SoloBest, ...] | None = None,
    kept: Kept | None = None,
) -> Run:
    """The same on a rig that is there, of the devices with samples, and stays. Raises OutOfMemory as it comes."""
    used = without_empty_shares(request)
    own = joint_series(used, used.batches, used.micro_batches, watch)
    return _run(request, _Progress(used, rig, own, kept or Kept(None, watch), solo=solo), driver, watch)


def joint_series(
    request: RunRequest,
    batches: tuple[int, ...],
    micro_batches: tuple[int, ...] | None,
    watch: Watch,
    name: str = "",
) -> Series:
    """A series of a split on the request's devices, which all have samples: watched, and its GPUs read."""
    devices, sensors = request.devices, Sensors(request.devices)

    def tell(sample: Sample) -> None:
        watch(SampleDone(name, devices, batches, sample.seconds / sample.steps, sample.compute_s, sensors.latest))

    return Series(batches, micro_batches, sensors, tell)


def _run(asked: RunRequest, progress: _Progress, driver: str | None, watch: Watch) -> Run:
    try:
        _warm_up(progress, watch)
        _measure(progress, watch)
    except KeyboardInterrupt as interrupt:
        raise _interrupted(interrupt, _result(asked, progress, driver)) from None
    except GpubalanceError as error:
        error.partial = error.partial or _result(asked, progress, driver)
        raise
    progress.complete = True
    result = _result(asked, progress, driver)
    assert result is not None  # noqa: S101  (a complete run has a window)
    return result


def _interrupted(interrupt: KeyboardInterrupt, partial: Run | None = None) -> Interrupted:
    return Interrupted(getattr(interrupt, "number", int(signal.SIGINT)), partial=partial)


def without_empty_shares(request: RunRequest) -> RunRequest:
    """The request of the devices that get samples."""
    kept = [i for i, batch in enumerate(request.batches) if batch]
    return request.model_copy(
        update={
            "devices": tuple(request.devices[i] for i in kept),
            "batches": tuple(request.batches[i] for i in kept),
            "micro_batches": request.micro_batches and tuple(request.micro_batches[i] for i in kept),
        }
    )


def _warm_up(progress: _Progress, watch: Watch) -> None:
    request, rig = progress.request, progress.rig
    progress.kept.restore("", progress.own)
    if progress.own.windows:
        progress.warnings.append(resumed(progress.own.windows))
    watch(Doing(f"warming up {split_text(request.batches, request.micro_batches)}"))
    progress.own.warm_up(rig.worker)
    if request.measuring.baseline == "none":
        return
    even = even_split(sum(request.batches), len(request.batches))
    # The even split is what Keras would do: it accumulates nothing.
    if even == request.at_a_time or len(even) == 1:
        return
    watch(Doing(f"warming up the even split {split_text(even)}, to compare with"))
    try:
        progress.even = joint_series(request, even, None, watch, "even")
        progress.even.warm_up(rig.worker)
    except OutOfMemory as error:
        rig.recover()
        try:
            progress.even = _smaller_even_split(progress, even, error, watch)
        except OutOfMemory as again:
            _give_up_even(progress, again, watch)
    if progress.even is not None:
        progress.kept.restore("even", progress.even)


def _smaller_even_split(progress: _Progress, even: tuple[int, ...], error: OutOfMemory, watch: Watch) -> Series:
    request = progress.request
    where = "a device" if error.replica is None else request.devices[error.replica].label
    watch(Doing(f"the even split {split_text(even)} does not fit on {where}; looking for the largest equal shares"))
    share = largest_even_share(progress.rig, request, max(even))
    series = joint_series(request, (share,) * len(even), None, watch, "even")
    watch(Doing(f"warming up {split_text(series.batches)}, the largest equal shares that fit"))
    series.warm_up(progress.rig.worker)
    # On a real device the search left another worker: the split itself must be warm in it too.
    if any(not d.simulated for d in request.devices):
        progress.own.warm_up(progress.rig.worker)
    progress.warnings.append(
        Warning_(
            code="even-split-does-not-fit",
            message=f"the even split {split_text(even)} runs out of memory on {where}: "
            f"compared with {split_text(series.batches)} instead, the largest equal shares that fit",
            next="nothing to do: no equal split of this global batch is possible on these devices",
        )
    )
    return series


def _measure(progress: _Progress, watch: Watch) -> None:
    """Windows of the split and of the even split in turns, so that a machine that drifts is fair to both."""
    measuring = progress.request.measuring
    number = min(one.windows for _, one in progress.series)  # 0, but for a run that goes on
    of = max(number, measuring.windows)
    while number < of or _once_more(progress, of, watch):
        number += 1
        of = max(number, of)
        turns = ", in turns with the even split" if progress.even else ""
        split = split_text(progress.own.batches, progress.own.micro_batches)
        watch(Doing(f"measuring {split}, window {number} of {of}{turns}"))
        watch(TimeLeft((of - number + 1) * len(progress.series) * measuring.duration_s))
        # Each goes first in turn: on a card that gets hotter the second one is always a little slower.
        for name, one in progress.series if number % 2 else reversed(progress.series):
            window = _window(progress, one, watch) if one.windows < number else None
            if window is not None:
                devices = progress.request.devices
                progress.kept.window(name, window)
                watch(WindowDone(number, of, name, devices, window.measurement(range(len(devices)))))


def _once_more(progress: _Progress, windows: int, watch: Watch) -> bool:
    """Whether another window is needed beside those that were asked for, and why."""
    imprecise = any(one.precision > PRECISE_ENOUGH for _, one in progress.series)
    if imprecise and windows < progress.request.measuring.max_windows:
        watch(Doing(f"not yet known within ±{PRECISE_ENOUGH:.0%} (95 %): one more window"))
        return True
    if progress.slowed and not progress.measured_again:
        progress.measured_again = True
        watch(Doing(f"{slowed_text(progress.slowed)}: measuring once more"))
        return True
    return False


def _window(progress: _Progress, one: Series, watch: Watch) -> Series | None:
    """A window of one of the two; None where the even split ran out of memory, which the run survives without it."""
    try:
        return one.window(progress.rig.worker, progress.request.measuring.duration_s)
    except OutOfMemory as error:
        if one is progress.own:
            raise
        _give_up_even(progress, error, watch)
        return None


def _give_up_even(progress: _Progress, error: OutOfMemory, watch: Watch) -> None:
    watch(Doing(f"{error.message}: going on without the even split"))
    progress.even = None
    progress.warnings.append(
        Warning_(
            code="even-split-out-of-memory",
            message=f"{error.message}, in turns with the run's split: there is no even split to compare with",
            next="compare with smaller batches, or measure with --baseline none",
        )
    )
    progress.rig.recover()
    progress.own.warm_up(progress.rig.worker)


def _result(asked: RunRequest, progress: _Progress, driver: str | None) -> Run | None:
    """The result of what was measured so far; None where that is not one whole window of the split."""
    own = progress.own
    if not own.samples or not own.stamped:
        return None
    numbers = [i for i, batch in enumerate(asked.batches) if batch]
    began_s = min(one.began_s for one in (own, progress.even) if one and one.stamped)
    measured = own.measurement(numbers, began_s)
    even = _even_baseline(progress, measured, numbers, began_s)
    facts = progress.rig.worker.facts
    solo_sum = sum(best.throughput for best in progress.solo) if progress.solo else None
    return Run(
        created=now(),
        settings=asked.settings,
        environment=environment(facts, driver),
        model=model_of(progress.rig.worker),
        devices=asked.devices,
        **{
            **{name: getattr(measured, name) for name in Measurement.model_fields},
            "batches": asked.batches,
            "micro_batches": asked.at_a_time,
        },
        warmup_steps=own.warmup_steps,
        steps=own.steps,
        stamp_cost=own.stamp_cost,
        baselines=Baselines(even=even, solo_best=progress.solo, solo_sum=solo_sum),
        speedup_over_even=even and measured.throughput.median / even.throughput.median,
        speedup_ci95=even and _ratio_interval(measured.throughput, even.throughput),
        scaling_efficiency=solo_sum and measured.throughput.median / solo_sum,
        complete=progress.complete,
        warnings=(
            *progress.warnings,
            *([throttled(progress.slowed)] if progress.slowed else []),
            *warnings(
                own, progress.even, asked.settings.model, excess_part=measured.excess_s / measured.step_time_s.median
            ),
        ),
    )


def _even_baseline(
    progress: _Progress, measured: Measurement, numbers: list[int], began_s: float
) -> Measurement | None:
    if progress.even is not None:
        return progress.even.measurement(numbers, began_s) if progress.even.samples and progress.even.stamped else None
    is_even = measured.micro_batches == even_split(measured.global_batch, len(measured.batches))
    wanted = progress.request.measuring.baseline == "even" and len(numbers) > 1
    return measured if is_even and wanted else None


def _ratio_interval(a: Throughput, b: Throughput) -> tuple[float, float] | None:
    """95 % interval of a/b, the relative half-widths added in squares; 1 exactly for the same measurement."""
    if a is b:
        return 1.0, 1.0
    if a.ci95 is None or b.ci95 is None:
        return None
    ratio = a.median / b.median
    half = ratio * math.hypot(*((t.ci95[1] - t.ci95[0]) / 2 / t.median for t in (a, b) if t.ci95))
    return ratio - half, ratio + half
