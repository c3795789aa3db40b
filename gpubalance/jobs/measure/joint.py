"""Measures a split in turns with its baseline, the even split, and makes the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import Doing
from gpubalance.jobs.measure import figures, stamps, warnings
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.pipeline import ROUND_S, held_against, measure_pipeline
from gpubalance.jobs.measure.subject import Subject
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.numbers.ratio import Ratio, ratio
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
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.shares import Shares


@dataclass
class JointRun:
    """A run of a split, and what it is compared with as far as that has been found.

    `asked` may have devices without samples; the measurer's party has none of them. `solo` is what
    the devices gave alone. With `from_pipeline` batches come from the user's own pipeline, which is
    measured alone too, and the same batches are measured while they are `held` on the devices.

    `even` is what Keras would run: the split's global batch in equal shares. Where these do not fit
    without micro-batches, it is the largest equal shares that do. It may be the split itself; None
    if there is none or not yet.
    """

    asked: RunRequest
    measurer: Measurer
    solo: tuple[SoloBest, ...] | None = None
    from_pipeline: bool = False
    even: Subject | None = None
    pipeline: InputPipeline | None = None
    warnings: list[Warning_] = field(default_factory=list)
    complete: bool = False

    def __post_init__(self) -> None:
        self.request = self.asked.without_idle
        split, devices = self.request.split, self.request.devices
        self.own = Subject(split, devices, pipeline=self.from_pipeline)
        self.held: Subject | None = None
        if self.from_pipeline:
            self.held = Subject(split, devices, "held", is_baseline=True, shown=False)

    def measure(self) -> None:
        """Measures to the end. Raises OutOfMemory if the run's own split does not fit."""
        measurer, measuring, split = self.measurer, self.request.measuring, self.own.split
        if self.from_pipeline:
            round_s = min(ROUND_S, measuring.duration_s or ROUND_S)
            self.pipeline = measure_pipeline(
                measurer.party, split.global_batch, measurer.watch, round_s
            )
        measurer.watch(Doing(f"warming up {split}"))
        measurer.warm_up(self.own)
        if measuring.baseline == "even" and len(self.request.devices) > 1:
            self._warm_up_even()
        self._measure_in_turns()
        self.complete = True

    def _measure_in_turns(self) -> None:
        """Measures windows; without the even split from when that runs out of memory."""
        while True:
            doing = f"measuring {self.own.split}, {{window}}"
            if self.even is not None and self.even != self.own:
                doing += ", in turns with the even split"
            turns = [(subject,) for subject in self._subjects()]
            try:
                return in_turns(self.measurer, turns, self.request.measuring, doing)
            except OutOfMemory as error:
                even_failed = self.measurer.current == (self.even,) and self.even != self.own
                if not even_failed:
                    raise
                self._give_up(error)

    def _subjects(self) -> list[Subject]:
        """What is measured in turns."""
        subjects = [self.own]
        for subject in (self.even, self.held):
            if subject is not None and subject != self.own:
                subjects.append(subject)
        return subjects

    def _warm_up_even(self) -> None:
        """Finds the largest even split that fits and warms it up; gives it up if none does."""
        split = self.request.split
        even = Shares.even(split.global_batch, len(self.request.devices))
        if even == split:
            self.even = self.own
            return
        try:
            self.even = self._largest(even)
        except OutOfMemory as error:
            self._give_up(error)

    def _give_up(self, error: OutOfMemory) -> None:
        self.measurer.watch(Doing(f"{error.message}: continuing without the even split"))
        self.even = None
        self.warnings.append(warning("even-split-out-of-memory", what=error.message))

    def _largest(self, even: Shares) -> Subject:
        """The even split, or the largest equal shares that fit in one piece, warmed up."""
        devices, measurer = self.request.devices, self.measurer
        peaks = measurer.warm_up_of(self.own).peaks
        fitting = Fitting(measurer.party, self.request, measurer.watch, peaks)
        where = fitting.too_small_for(even)
        if where is None:
            try:
                return self._warm(even)
            except OutOfMemory as error:
                where = "a device" if error.replica is None else devices[error.replica].label
        too_large = f"the even split {even} does not fit on {where}"
        measurer.watch(Doing(f"{too_large}; looking for the largest that does"))
        share = fitting.largest_even_share(max(even.batches))
        if share == max(even.batches):
            # The even split itself, whose shares may differ by one, fits on a second try.
            return self._warm(even)
        return self._warm(Shares((share,) * len(devices)))

    def _warm(self, split: Shares) -> Subject:
        self.measurer.watch(Doing(f"warming up the even split {split}, to compare with"))
        devices = self.request.devices
        even = Subject(split, devices, "even", is_baseline=True, pipeline=self.from_pipeline)
        self.measurer.warm_up(even)
        return even

    def last(self) -> Measurement:
        """What the last window of its own split gave."""
        last = self.measurer.windows[self.own][-1:]
        sensors = self.measurer.sensors(self.own)
        return measurement(self.own.split, last, sensors, used_places=self.asked.split.used)

    def result(self) -> Run | None:
        """The result of what was measured so far; None until the split has a window."""
        windows = self.measurer.windows[self.own]
        if not windows:
            return None
        asked, solo, facts = self.asked, self.solo, self.measurer.party.facts
        even_windows = self.measurer.windows[self.even] if self.even is not None else []
        began_s = figures.began_s(windows)
        if even_windows:  # one time axis for both
            began_s = min(began_s, figures.began_s(even_windows))
        measured = self._measurement(self.own, began_s)
        even = None
        if self.even is not None and even_windows:
            even = self._measurement(self.even, began_s)
        speedup = self._speedup(measured, even)
        solo_sum = sum(best.throughput for best in solo) if solo else None
        fields = dict(measured)
        # A result has all the devices that were asked for, also those without samples.
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
            stamp_cost=stamps.stamp_cost(windows),
            pack_bytes=facts.pack_bytes,
            baselines=Baselines(even=even, solo_best=solo, solo_sum=solo_sum),
            speedup_over_even=speedup and speedup.value,
            speedup_ci95=speedup and speedup.ci95,
            scaling_efficiency=solo_sum and measured.throughput.median / solo_sum,
            pipeline=self._pipeline(),
            complete=self.complete,
            warnings=(*self.warnings, *self._found(measured)),
        )

    def _measurement(self, subject: Subject, origin_s: float) -> Measurement:
        windows, sensors = self.measurer.windows[subject], self.measurer.sensors(subject)
        used_places = self.asked.split.used
        return measurement(subject.split, windows, sensors, used_places, origin_s)

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
        if self.pipeline is None:
            return None
        held = None
        windows = self.measurer.windows[self.held] if self.held is not None else []
        if windows:
            times_s = figures.step_times_s(windows)
            held = figures.throughput_of(self.own.split.global_batch, times_s)
        solo_sum_in_use = alone_in_use(self.solo, self.asked.split.batches)
        return held_against(self.pipeline, held, solo_sum_in_use)

    def _found(self, measured: Measurement) -> Iterator[Warning_]:
        """Warnings of what else was found, and those about the figures."""
        measurer = self.measurer
        if len(measured.batches) > 1:
            for text in measurer.party.facts.verdict.warned:
                yield warning("not-exact", text=text)
        yield from warnings.resumed(measurer.resumed[(self.own,)])
        known = [subject for subject in self._subjects() if measurer.windows[subject]]
        yield from warnings.of_figures(
            self.request.settings.model,
            figures.throttled_gpus(self.own.devices, measurer.windows[self.own]),
            [measurer.windows[subject] for subject in known],
            steady=all(measurer.warm_up_of(subject).steady for subject in known),
            excess_part=measured.excess_s / measured.step_time_s.median,
        )
        users_batch = self.pipeline.joined_from if self.pipeline else None
        yield from warnings.batches_joined(users_batch, measured.global_batch)
