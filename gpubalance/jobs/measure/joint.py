"""Measures a split in turns with its baseline, the even split."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.pipeline import ROUND_S, measure_pipeline
from gpubalance.jobs.measure.run_findings import RunFindings
from gpubalance.jobs.measure.subject import Subject
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.requests import RunRequest


class JointRun:
    """Measures the split of a run, and the even split beside it if that is asked for.

    The `findings` make the result, at any time.
    """

    def __init__(
        self,
        asked: RunRequest,
        measurer: Measurer,
        solo: tuple[SoloBest, ...] | None = None,
        *,
        from_pipeline: bool = False,
    ) -> None:
        self.findings = RunFindings(asked, measurer, solo, from_pipeline)
        self.measurer = measurer
        self.request = asked.without_idle  # devices without samples are no replicas

    def measure(self) -> None:
        """Measures to the end. Raises OutOfMemory if the run's own split does not fit."""
        measurer = self.measurer
        findings = self.findings
        measuring = self.request.measuring
        split = self.request.split
        if findings.from_pipeline:
            round_s = min(ROUND_S, measuring.duration_s or ROUND_S)
            findings.pipeline = measure_pipeline(
                measurer.party, split.global_batch, measurer.watch, round_s
            )
        measurer.watch(Doing(f"warming up {split}"))
        measurer.warm_up(findings.own)
        if measuring.baseline == "even" and len(self.request.devices) > 1:
            self._warm_up_even()
        self._measure_in_turns()
        findings.complete = True

    def _measure_in_turns(self) -> None:
        """Measures windows; without the even split from when that runs out of memory."""
        findings = self.findings
        while True:
            # For in_turns to fill in
            doing = f"measuring {self.request.split}, {{window}}"
            if findings.even_is_another:
                doing += ", in turns with the even split"
            turns = [(subject,) for subject in findings.subjects()]
            try:
                return in_turns(self.measurer, turns, self.request.measuring, doing)
            except OutOfMemory as error:
                is_even = self.measurer.current == (findings.even,)
                if not is_even or not findings.even_is_another:
                    raise
                self._give_up(error)

    def _warm_up_even(self) -> None:
        """Finds the largest even split that fits and warms it up; gives it up if none does."""
        split = self.request.split
        even = BatchSplit.even(split.global_batch, len(self.request.devices))
        if even == split:
            self.findings.even = self.findings.own
            return
        try:
            self.findings.even = self._largest(even)
        except OutOfMemory as error:
            self._give_up(error)

    def _give_up(self, error: OutOfMemory) -> None:
        self.measurer.watch(
            Doing(f"{error.message}: continuing without the even split")
        )
        self.findings.even = None
        self.findings.warnings.append(
            warning("even-split-out-of-memory", what=error.message)
        )

    def _largest(self, even: BatchSplit) -> Subject:
        """The even split, or the largest equal shares that fit without micro-batches, warmed up."""
        devices = self.request.devices
        measurer = self.measurer
        peaks = measurer.warm_up_of(self.findings.own).peaks
        fitting = Fitting(measurer.party, self.request, measurer.watch, peaks)
        where = fitting.too_small_for(even)
        if where is None:
            try:
                return self._warm(even)
            except OutOfMemory as error:
                where = "a device"
                if error.replica is not None:
                    where = devices[error.replica].label
        too_large = f"the even split {even} does not fit on {where}"
        measurer.watch(Doing(f"{too_large}; looking for the largest that does"))
        share = fitting.largest_even_share(max(even.batches))
        if share == max(even.batches):
            # It was found to fit after all: the even split itself, whose shares may differ by one.
            return self._warm(even)
        return self._warm(BatchSplit((share,) * len(devices)))

    def _warm(self, split: BatchSplit) -> Subject:
        self.measurer.watch(
            Doing(f"warming up the even split {split}, to compare with")
        )
        even = Subject(
            split,
            self.request.devices,
            name="even",
            is_baseline=True,
            pipeline=self.findings.from_pipeline,
        )
        self.measurer.warm_up(even)
        return even
