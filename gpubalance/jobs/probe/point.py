"""A point of a device's curve: one batch size, warmed up and measured."""

from __future__ import annotations

import time

from gpubalance.jobs.measure import figures
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.stopping import PRECISE_ENOUGH, StoppingRule
from gpubalance.jobs.measure.subject import Subject
from gpubalance.jobs.measure.subject_runner import (
    SubjectRunner,
    step_s_of,
    steps_per_timing,
)
from gpubalance.jobs.measure.warm_up import train_until_settled
from gpubalance.jobs.probe.bench import Bench
from gpubalance.numbers.steady import is_steady
from gpubalance.results.probe import CurvePoint
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.workers.worker import Worker

# The second has what the first allocated, and its gradients beside it.
_SHOWING_STEPS = 2


def try_steps(bench: Bench, worker: Worker, batch: int) -> int | None:
    """Trains so few steps that a batch is known to train; the peak of the memory, if known.

    Raises what `Worker.measure` does.
    """
    runner = _runner(bench, worker, batch)
    list(runner.train(at_least=_SHOWING_STEPS))
    return runner.peaks[0]


def measure_point(
    bench: Bench, worker: Worker, batch: int, rule: StoppingRule, *, first: bool
) -> tuple[CurvePoint, float]:
    """Warms a batch size up, measures it until it is known, and returns the seconds of that too.

    It is measured once more, and not called steady, if its step time rose, fell or changed its
    level, or NVML says that heat throttled the GPU: then the second window counts. After the time
    limit that does not begin. The `first` batch of a device takes longer to settle. Raises what
    `Worker.measure` does.
    """
    runner = _runner(bench, worker, batch)
    settled = train_until_settled(runner, refuses_bad_loss=first)[-2:]
    step_s = step_s_of(settled[-1])
    # Else those that settled it count too
    if steps_per_timing(rule.timing_s, step_s) > 1:
        settled = []
    until_s = bench.time_limit.until_s
    windows = [runner.window(rule, step_s, settled, until_s=until_s)]
    steady = is_steady(figures.step_times_s(windows)) and not any(
        figures.throttled(windows)
    )
    if not steady and time.monotonic() < until_s:
        windows.append(runner.window(rule, step_s, until_s=until_s))
    measured_s = sum(timing.seconds for timing in figures.timings_in(windows))
    last = windows[-1:]
    step_time = figures.step_time(last, figures.began_s(last))
    point = CurvePoint(
        batch=batch,
        step_time_s=step_time,
        throughput=figures.throughput_of(batch, step_time.samples),
        memory_peak_bytes=runner.peaks[0],
        precise=figures.precision(last) <= PRECISE_ENOUGH,
        steady=steady,
        measured_again=len(windows) > 1,
        late_part=figures.late_part(windows),
        unlike=figures.are_unlike(last),
        telemetry=runner.sensors.telemetry(figures.began_s(last))[0],
    )
    return point, measured_s


def _runner(bench: Bench, worker: Worker, batch: int) -> SubjectRunner:
    subject = Subject(
        BatchSplit((batch,)),
        (bench.device,),
        wants_stamps=False,
        shown=False,
        least_samples=bench.request.least_samples,
    )
    return SubjectRunner(worker, subject, Sensors(subject.devices))
