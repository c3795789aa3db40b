"""Measures a split in turns with its baseline, the even split."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.events import Doing
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.input_pipeline import measure_input_pipeline
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.run_findings import RunFindings
from gpubalance.jobs.measure.subject import Subject, Turn
from gpubalance.jobs.measure.too_slow import too_slow_windows
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.results.run import SoloBest
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.requests import RunRequest


class JointRun:
    """Measures the split of a run, and the even split beside it if that is asked for.

    The `findings` make the result, at any time. If batches come `from_input_pipeline`, the user's
    own, that is measured alone first. If it `refuses_too_slow`, a first window of the split whose
    steps mostly take clearly longer than by the devices' profiles ends it with UsageError.
    """

    def __init__(
        self,
        asked: RunRequest,
        measurer: Measurer,
        solo: tuple[SoloBest, ...] | None = None,
        *,
        from_input_pipeline: bool = False,
        refuses_too_slow: bool = False,
    ) -> None:
        self.findings = RunFindings(asked, measurer, solo, from_input_pipeline)
        self.measurer = measurer
        self._refuses_too_slow = refuses_too_slow
        self.request = asked.without_idle  # devices without samples are no replicas

    def measure(self) -> None:
        """Measures to the end. Raises OutOfMemory if the run's own split does not fit."""
        measurer = self.measurer
        findings = self.findings
        measuring = self.request.measuring
        split = self.request.split
        if findings.from_input_pipeline:
            findings.input_pipeline = measure_input_pipeline(
                measurer.party,
                split.global_batch,
                measurer.watch,
                measuring.duration_s,
            )
        measurer.watch(Doing(f"warming up {split}"))
        measurer.warm_up(findings.own)
        if measuring.baseline == "even" and len(self.request.devices) > 1:
            self._warm_up_even()
        self._measure_in_turns()
        findings.complete = True

    def _measure_in_turns(self) -> None:
        """Measures windows, and goes on without the even split if that runs out of memory."""
        findings = self.findings
        # `in_turns` goes on from the windows that there are, so a second pass repeats none.
        while True:
            # For `in_turns` to fill in
            doing = f"measuring {self.request.split}, {{window}}"
            if findings.even_is_another:
                doing += ", in turns with the even split"
            # All subjects need the same devices, so each has a turn of its own.
            turns: list[Turn] = [(subject,) for subject in findings.subjects()]
            try:
                in_turns(
                    self.measurer, turns, self.request.measuring, doing, self._look
                )
            except OutOfMemory as error:
                even_failed = self.measurer.current == (findings.even,)
                if not (even_failed and findings.even_is_another):
                    raise
                self._give_up_even(error)
            else:
                return

    def _look(self, turn: Turn) -> None:
        """Raises UsageError, and keeps no window, if this machine can't follow the profile."""
        own = self.findings.own
        if turn != (own,) or not self._refuses_too_slow:
            return
        request = self.request
        windows = self.measurer.windows[own]
        fault = too_slow_windows(own, windows, request.settings, request.joint)
        if fault is not None:
            self.measurer.forget(turn)
            raise fault

    def _warm_up_even(self) -> None:
        """Warms up the largest even split that fits; goes on without it if none does."""
        split = self.request.split
        even = BatchSplit.even(split.global_batch, len(self.request.devices))
        if even == split:
            self.findings.even = self.findings.own
            return
        try:
            self.findings.even = self._warm_up_largest(even)
        except OutOfMemory as error:
            self._give_up_even(error)

    def _give_up_even(self, error: OutOfMemory) -> None:
        self.measurer.watch(
            Doing(f"{error.message}: continuing without the even split")
        )
        self.findings.even = None
        self.findings.warnings.append(
            warning("even-split-out-of-memory", what=error.message)
        )

    def _warm_up_largest(self, even: BatchSplit) -> Subject:
        """The even split, warmed up, or the largest equal shares that fit without micro-batches."""
        devices = self.request.devices
        measurer = self.measurer
        peaks = measurer.warm_up_of(self.findings.own).peaks
        fitting = Fitting(measurer.party, self.request, measurer.watch, peaks)
        too_small_device = fitting.device_too_small_for(even)
        if too_small_device is None:
            try:
                return self._warm_up_as_even(even)
            except OutOfMemory as error:
                too_small_device = "a device"
                if error.replica is not None:
                    too_small_device = devices[error.replica].label
        too_large = f"the even split {even} does not fit on {too_small_device}"
        measurer.watch(Doing(f"{too_large}; looking for the largest that does"))
        share = fitting.largest_even_share(max(even.batches))
        if share == max(even.batches):
            # It fits after all. Not (share,) * n: the shares of the even split may differ by one.
            return self._warm_up_as_even(even)
        return self._warm_up_as_even(BatchSplit((share,) * len(devices)))

    def _warm_up_as_even(self, split: BatchSplit) -> Subject:
        self.measurer.watch(
            Doing(f"warming up the even split {split}, to compare with")
        )
        even = Subject(
            split,
            self.request.devices,
            name="even",
            is_baseline=True,
            from_input_pipeline=self.findings.from_input_pipeline,
        )
        self.measurer.warm_up(even)
        return even
