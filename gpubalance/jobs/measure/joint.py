"""Runs a split in turns with the even split, and makes the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.endings import giving
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import Doing, Watch, WindowDone
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.measure.even import Even
from gpubalance.jobs.measure.length import Length
from gpubalance.jobs.measure.pipeline import ROUND_S, Ceiling
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import batches_joined, of_figures, resumed, warning
from gpubalance.jobs.measure.window import SplitWindow
from gpubalance.numbers.ratio import ratio
from gpubalance.results.common import Warning_, now
from gpubalance.results.run import Baselines, Measurement, Run, SoloBest, alone_in_use
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest, RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Build, Party


def party_for(
    request: RunRequest | BalanceRequest | LayersRequest,
    watch: Watch,
    limit: TimeLimit,
    *devices: Device,
    purpose: str = "run",
) -> Party:
    """A party of one worker for all of the request's devices, or for these."""
    measuring = request.measuring
    return Party(
        devices or request.devices,
        build=Build(request.settings, request.joint, measuring.seed, layers=isinstance(request, LayersRequest)),
        purpose=purpose,
        deadline_s=measuring.deadline_s,
        limit=limit,
        tell=lambda text: watch(Doing(text)),
    )


@dataclass
class JointRun:
    """A run of a split in windows, in turns with those of the even split.

    `asked` may have devices without samples; the party has none of them. `driver` is recorded, `solo` is what the
    devices gave alone, to compare with. `proof` tells the runs of one `balance` apart.
    `best_of` gives the best split of a global batch, if known. With `pipeline` batches come from the user's own
    pipeline, and a third series has the same batches held on the devices.
    """

    asked: RunRequest
    party: Party
    driver: str | None
    watch: Watch
    once: Once
    solo: tuple[SoloBest, ...] | None = None
    proof: int = 0
    best_of: Callable[[int], Shares | None] = lambda _: None
    pipeline: bool = False
    again: int = 0  # windows of its split that an interrupted run left
    complete: bool = False
    last: Measurement | None = None  # by the split's last window
    doing: str = ""  # as was told last

    def __post_init__(self) -> None:
        self.request = self.asked.of_used
        self.measuring = self.request.measuring
        split, devices = self.request.split, self.request.devices
        self.own = Series(split, devices=devices, watch=self.watch, pipeline=self.pipeline)
        self.held = Series(split, name="held", devices=devices) if self.pipeline else None
        self.even = Even(self.party, self.own, self.request, self.watch, self._measure_beside, self.best_of)
        self.alone: Ceiling | None = None

    def run(self) -> Run:
        """Measures to the end. Raises OutOfMemory; every error carries what was measured before it as `partial`."""
        with giving(self.result):
            if self.pipeline:
                round_s = min(ROUND_S, self.measuring.duration_s or ROUND_S)
                self.alone = Ceiling.measured(self.party, self.own.split.global_batch, self.watch, round_s)
            self.watch(Doing(f"warming up {self.own.split}"))
            self._warm_up()
            if self.measuring.baseline == "even":
                self.even.warm_up()
                self._warm_up()  # on a real device a split that did not fit has ended the worker
            in_turns(lambda: self.series, self._turn, self.measuring, lambda: self.own.slowed, self.watch)
        self.complete = True
        result = self.result()
        assert result is not None  # noqa: S101  (a complete run has a window)
        return result

    @property
    def series(self) -> list[Series]:
        """The series that are measured in turns."""
        return [one for one in (self.own, self.even.series, self.held) if one is not None]

    def _warm_up(self) -> None:
        for series in self.series:
            self.party.ask(series.warm_up)

    def _measure_beside(self, series: Series) -> None:
        """Measures one window, before the others, of equal shares in one piece or of the best split beside them.

        It is no longer than a round, as nothing is decided by it.
        """
        split, length = series.split, Length.of_round(self.measuring.duration_s)
        self._window(series, 1, length, f"measuring {split}, a global batch of {split.global_batch}")

    def _window(self, series: Series, number: int, length: Length, doing: str) -> SplitWindow:
        """The series' window of that number, measured now unless an interrupted run left it."""

        def measured() -> SplitWindow:
            if doing != self.doing:
                self.doing = doing
                self.watch(Doing(doing))
            self.party.ask(series.warm_up)
            return self.party.ask(lambda worker: series.window(worker, length))

        uuids, model = [device.uuid for device in self.request.devices], self.party.facts.model
        key = content_key("window", self.proof, *uuids, model, series.name, str(series.split), number)
        window = self.once(key, SplitWindow, measured)
        if series.windows < number:
            series.add(window)
            self.again += series is self.own
        return window

    def _turn(self, series: Series, number: int, of: int) -> None:
        """Measures a window. The run goes on without the even split if that runs out of memory."""
        turns = ", in turns with the even split" if self.even.series else ""
        doing = f"measuring {self.own.split}, window {number} of {of}{turns}"
        try:
            window = self._window(series, number, Length.of_window(self.measuring), doing)
        except OutOfMemory as error:
            if series is not self.even.series:
                raise
            self.even.give_up(error)
            self._warm_up()
            return
        timings = Timings.of(window, series.split, series.sensors)
        if series is self.own:
            self.last = timings.measurement(self.asked.split.used)
        self.watch(WindowDone(number, of, series.name, series.devices, timings.measurement()))

    def result(self) -> Run | None:
        """The result of what was measured so far; None until the split has timings with and without stamps."""
        asked, own = self.asked, self.own
        four = (own, self.even.series, self.even.largest, self.even.best_at_largest)
        known = [one if one and one.timings and one.stamped else None for one in four]
        began_s = min((one.began_s for one in known if one), default=0.0)
        used = asked.split.used
        measured, even, largest, best = (one.measurement(used, began_s) if one else None for one in known)
        if measured is None:
            return None
        even = measured if self.even.is_own else even
        rate, times = measured.throughput.median, measured.step_time_s.samples
        faster = even and ratio(rate / even.throughput.median, times, even.step_time_s.samples)
        held = self.held.throughput if self.held and self.held.timings else None
        solo_sum = sum(one.throughput for one in self.solo) if self.solo else None
        in_use = alone_in_use(self.solo, asked.split.batches)
        batches = {"batches": asked.split.batches, "micro_batches": asked.split.micro_batches}
        return Run(
            created=now(),
            settings=asked.settings,
            environment=environment(self.party.facts, self.driver),
            model=self.party.facts.model,
            devices=asked.devices,
            **{**dict(measured), **batches},
            warmup_steps=own.warmup_steps,
            steps=own.steps,
            stamp_cost=own.stamp_cost,
            baselines=Baselines(
                even=even,
                largest_even=largest,
                best_at_largest_even=best,
                solo_best=self.solo,
                solo_sum=solo_sum,
            ),
            speedup_over_even=faster and faster.value,
            speedup_ci95=faster and ((1.0, 1.0) if even is measured else faster.ci95),
            scaling_efficiency=solo_sum and rate / solo_sum,
            pipeline=self.alone and self.alone.result(held, in_use),
            complete=self.complete,
            warnings=(*self.even.warnings, *self._found(measured)),
        )

    def _found(self, measured: Measurement) -> list[Warning_]:
        """What else was found, and the warnings about the figures."""
        figures = of_figures(
            self.request.settings.model,
            self.own.slowed,
            [one for one in self.series if one.timings],
            steady=all(one.steady for one in self.series),
            stamp_cost=self.own.stamp_cost,
            excess_part=measured.excess_s / measured.step_time_s.median,
        )
        return [
            *(warning("not-exact", text=text) for text in self.party.facts.warned if len(measured.batches) > 1),
            *resumed(self.again),
            *figures,
            *batches_joined(self.alone.joined_from if self.alone else None, measured.global_batch),
        ]
