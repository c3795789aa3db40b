"""What a run of a split has found so far, and the result that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubalance.devices.machine import environment
from gpubalance.jobs.measure import figures, warnings
from gpubalance.jobs.measure.figures import Windows, measurement
from gpubalance.jobs.measure.input_pipeline import held_against
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.window import Workload
from gpubalance.numbers.stats import Ratio, ratio
from gpubalance.results.common import Warning_, now
from gpubalance.results.run import (
    Baselines,
    InputPipeline,
    Measurement,
    Run,
    SoloBest,
    alone_in_use,
)
from gpubalance.results.warnings import warning
from gpubalance.settings.measuring import EVEN_SPLIT, ON_HELD_BATCHES, OWN_SPLIT
from gpubalance.settings.requests import RunRequest

# What tells their step times apart, by the workloads' names
_OF_SUBJECTS = {
    OWN_SPLIT: "",
    EVEN_SPLIT: " of the even split",
    ON_HELD_BATCHES: " on batches held on the devices, without the input pipeline,",
}


@dataclass
class RunState:
    """A run of a split, and what it is compared with as far as that has been found.

    `asked` may have devices without samples; the measurer's worker group has none of them. `solo`
    is what the devices gave alone. If batches come `from_input_pipeline`, the user's own, that is
    measured alone too, and the same batches are measured while they are `held` on the devices.

    `even` is what Keras would run: the split's global batch in equal shares. Where these do not fit
    without micro-batches, it is the largest equal shares that do. It may be the split itself; None
    if there is none or not yet.
    """

    asked: RunRequest
    measurer: Measurer
    solo: tuple[SoloBest, ...] | None = None
    from_input_pipeline: bool = False
    even: Workload | None = None
    input_pipeline: InputPipeline | None = None
    warnings: list[Warning_] = field(default_factory=list)
    complete: bool = False

    def __post_init__(self) -> None:
        used = self.asked.without_idle
        self.own = Workload(
            used.split, used.devices, from_input_pipeline=self.from_input_pipeline
        )
        self.held: Workload | None = None
        if self.from_input_pipeline:
            self.held = Workload(
                used.split,
                used.devices,
                ON_HELD_BATCHES,
                is_baseline=True,
                shown=False,
            )

    @property
    def measures_even_too(self) -> bool:
        """Whether an even split is measured beside the run's split, which is another one."""
        return self.even is not None and self.even != self.own

    def workloads(self) -> list[Workload]:
        """What is measured interleaved."""
        workloads = [self.own]
        for workload in (self.even, self.held):
            if workload is not None and workload != self.own:
                workloads.append(workload)
        return workloads

    def last(self) -> Measurement:
        """What the last window of its own split gave."""
        last = self.measurer.windows[self.own][-1:]
        sensors = self.measurer.sensors(self.own)
        return measurement(
            self.own.split, last, sensors, used_places=self.asked.split.used
        )

    def result(self) -> Run | None:
        """The result of what was measured so far; None until the split has a window."""
        windows = self.measurer.windows[self.own]
        if not windows:
            return None
        asked = self.asked
        facts = self.measurer.worker_group.facts
        began_s = figures.began_s(windows)
        even_windows = self._windows(self.even)
        if even_windows:  # one time axis for both
            began_s = min(began_s, figures.began_s(even_windows))
        measured = self._measurement(self.own, began_s)
        even = None
        if self.even is not None and even_windows:
            even = self._measurement(self.even, began_s)
        speedup = self._speedup(measured, even)
        solo_sum = None
        if self.solo:
            solo_sum = sum(best.throughput for best in self.solo)
        # A result has all the devices that were asked for, also those without samples.
        fields = dict(measured)
        fields["batches"] = asked.split.batches
        fields["micro_batches"] = asked.split.micro_batches
        return Run(
            created=now(),
            settings=asked.settings,
            environment=environment(asked.driver),
            model=facts.model,
            devices=asked.devices,
            **fields,
            warmup_steps=self.measurer.warm_up_of(self.own).steps,
            steps=figures.step_count(windows),
            stamp_cost=figures.stamp_cost(windows),
            pack_bytes=facts.pack_bytes,
            baselines=Baselines(even=even, solo_best=self.solo, solo_sum=solo_sum),
            speedup_over_even=speedup and speedup.value,
            speedup_ci95=speedup and speedup.ci95,
            scaling_efficiency=solo_sum and measured.throughput.median / solo_sum,
            pipeline=self._pipeline(),
            complete=self.complete,
            warnings=(*self.warnings, *self._found(measured)),
        )

    def _measurement(self, workload: Workload, origin_s: float) -> Measurement:
        return measurement(
            workload.split,
            self.measurer.windows[workload],
            self.measurer.sensors(workload),
            used_places=self.asked.split.used,
            origin_s=origin_s,
        )

    def _windows(self, workload: Workload | None) -> Windows:
        if workload is None:
            return []
        return self.measurer.windows[workload]

    def _speedup(self, measured: Measurement, even: Measurement | None) -> Ratio | None:
        """How much faster the split is than the even split; exactly 1 if it is that itself."""
        if even is None:
            return None
        if self.even == self.own:
            return Ratio(1.0, (1.0, 1.0), None)
        value = measured.throughput.median / even.throughput.median
        # The samples of a step time are timings.
        return ratio(value, measured.step_time_s.samples, even.step_time_s.samples)

    def _pipeline(self) -> InputPipeline | None:
        """The input pipeline, held against the split with batches on the devices."""
        if self.input_pipeline is None:
            return None
        held = None
        windows = self._windows(self.held)
        if windows:
            times_s = figures.step_times_s(windows)
            held = figures.throughput_of(self.own.split.global_batch, times_s)
        solo_sum_in_use = alone_in_use(self.solo, self.asked.split.batches)
        return held_against(self.input_pipeline, held, solo_sum_in_use)

    def _found(self, measured: Measurement) -> Iterator[Warning_]:
        """Warnings of what else was found, and those about the figures."""
        measurer = self.measurer
        if len(measured.batches) > 1:
            for text in measurer.worker_group.facts.combine_rules.warned:
                yield warning("not-exact", text=text)
        yield from warnings.resumed(measurer.resumed[(self.own,)])
        known = [
            workload for workload in self.workloads() if measurer.windows[workload]
        ]
        yield from warnings.of_figures(
            self.asked.settings,
            figures.throttled_gpus(self.own.devices, measurer.windows[self.own]),
            [measurer.windows[workload] for workload in known],
            names=[_OF_SUBJECTS[workload.name] for workload in known],
            steady=all(measurer.warm_up_of(workload).steady for workload in known),
            excess_part=measured.excess_s / measured.step_time_s.median,
        )
        yield from warnings.telemetry_ended(measurer.telemetry_ended())
        if self.input_pipeline is not None:
            yield from warnings.batches_joined(
                self.input_pipeline.joined_from, measured.global_batch
            )
