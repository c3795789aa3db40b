"""Runs a split in turns with its baseline, the even split, and makes the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.environment import environment
from gpubalance.jobs.events import Doing, Watch, WindowDone
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.pipeline import ROUND_S, held_against, measure_pipeline
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.timings import Window
from gpubalance.jobs.measure.turns import in_turns
from gpubalance.jobs.measure.warnings import batches_joined, of_figures, resumed, warning
from gpubalance.numbers.ratio import ratio
from gpubalance.results.common import Warning_, now
from gpubalance.results.run import (
    Baselines,
    InputPipeline,
    Measurement,
    Run,
    SoloBest,
    alone_in_use,
)
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, LayersRequest, RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build
from gpubalance.workers.party import Party


def party_for(
    request: RunRequest | BalanceRequest | LayersRequest,
    watch: Watch,
    limit: TimeLimit,
    *devices: Device,
    purpose: str = "run",
    journal: Journal | None = None,
) -> Party:
    """A party of one worker for all of the request's devices, or for these; `journal` keeps what it
    finds of models.
    """
    measuring = request.measuring
    return Party(
        devices or request.devices,
        build=build_for(request),
        purpose=purpose,
        deadline_s=measuring.deadline_s,
        limit=limit,
        tell=lambda text: watch(Doing(text)),
        verdicts=KeptVerdicts(journal) if journal else None,
    )


def build_for(request: RunRequest | BalanceRequest | LayersRequest) -> Build:
    """What the workers of a request build."""
    cuts = request.cuts if isinstance(request, LayersRequest) else None
    return Build(
        settings=request.settings, joint=request.joint, seed=request.measuring.seed, cuts=cuts
    )


@dataclass
class JointRun:
    """A run of a split in windows, in turns with those of the even split.

    `asked` may have devices without samples; the party has none of them. `solo` is what the devices
    gave alone, to compare with. `proof` tells the runs of one `balance` apart. With `pipeline`
    batches come from the user's own pipeline, and a third series has the same batches held on the
    devices.

    `even` is what Keras would run: the split's global batch in equal shares, or the largest equal
    shares that fit in one piece. There is none if the split `is_even` itself.
    """

    asked: RunRequest
    party: Party
    watch: Watch
    journal: Journal
    solo: tuple[SoloBest, ...] | None = None
    proof: int = 0
    pipeline: bool = False
    even: Series | None = None
    is_even: bool = False
    alone: InputPipeline | None = None
    again: int = 0  # windows of its split that an interrupted run left
    complete: bool = False
    doing: str = ""  # as was told last
    warnings: list[Warning_] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.request = self.asked.without_idle
        self.measuring = self.request.measuring
        self.own = self._series(self.request.split)
        self.held = self._series(self.request.split, "held") if self.pipeline else None

    def run(self) -> Run:
        """Measures to the end. Raises OutOfMemory; every error carries what was measured before it
        as `partial`.
        """
        with attach_partial(self.result):
            if self.pipeline:
                round_s = min(ROUND_S, self.measuring.duration_s or ROUND_S)
                self.alone = measure_pipeline(
                    self.party, self.own.split.global_batch, self.watch, round_s
                )
            self.watch(Doing(f"warming up {self.own.split}"))
            self.party.ask(self.own.warm_up)
            if self.measuring.baseline == "even" and len(self.request.devices) > 1:
                self._warm_up_even()
            in_turns(
                lambda: self.series, self._turn, self.measuring, lambda: self.own.slowed, self.watch
            )
        self.complete = True
        return cast("Run", self.result())  # it has windows

    @property
    def series(self) -> list[Series]:
        """The series that are measured in turns."""
        return [series for series in (self.own, self.even, self.held) if series is not None]

    def _series(self, split: Shares, name: str = "") -> Series:
        watch, pipeline = (
            self.watch if name in ("", "even") else None,
            self.pipeline and name != "held",
        )
        return Series(
            split, name=name, devices=self.request.devices, watch=watch, pipeline=pipeline
        )

    def _turn(self, series: Series, number: int, of: int) -> None:
        """Measures a window. The run goes on without the even split if that runs out of memory."""
        turns = ", in turns with the even split" if self.even else ""
        doing = f"measuring {self.own.split}, window {number} of {of}{turns}"
        try:
            self._window(series, number, StoppingRule.of_window(self.measuring), doing)
        except OutOfMemory as error:
            if series is not self.even:
                raise
            self._give_up(error)
            return
        self.watch(WindowDone(number, of, series.name, series.devices, series.last.measurement()))

    def _window(self, series: Series, number: int, length: StoppingRule, doing: str) -> None:
        """Adds the series' window of that number, measured now unless an interrupted
        run left it.
        """

        def measured() -> Window:
            if doing != self.doing:
                self.doing = doing
                self.watch(Doing(doing))
            # On a real device a split that did not fit has ended the worker.
            self.party.ask(series.warm_up)
            return self.party.ask(lambda worker: series.window(worker, length))

        uuids, facts = [device.uuid for device in self.request.devices], self.party.facts
        of_step = facts.model, facts.pack_bytes
        key = content_key(
            "window", self.proof, *uuids, *of_step, series.name, str(series.split), number
        )
        before = self.journal.again[Window]
        series.add(self.journal.get_or_make(key, Window, measured))
        self.again += series is self.own and self.journal.again[Window] > before

    def _warm_up_even(self) -> None:
        """Finds the largest even split that fits and warms it up; if not even one does, says so and
        gives it up.
        """
        split = self.request.split
        even = Shares.even(split.global_batch, len(self.request.devices))
        self.is_even = even == split
        if self.is_even:
            return
        try:
            self.even = self._largest(even)
        except OutOfMemory as error:
            self._give_up(error)

    def _give_up(self, error: OutOfMemory) -> None:
        self.watch(Doing(f"{error.message}: continuing without the even split"))
        self.even = None
        self.warnings.append(warning("even-split-out-of-memory", what=error.message))

    def _largest(self, even: Shares) -> Series:
        """The even split, or the largest equal shares that fit in one piece, warmed up."""
        devices = self.request.devices
        fitting = Fitting(self.party, self.request, self.watch, self.own.peaks)
        where = fitting.too_small_for(even)
        if where is None:
            try:
                return self._warm(even)
            except OutOfMemory as error:
                where = "a device" if error.replica is None else devices[error.replica].label
        self.watch(
            Doing(
                f"the even split {even} does not fit on {where}; looking for the largest that does"
            )
        )
        share = fitting.largest_even_share(max(even.batches))
        fits = share == max(even.batches)  # on a second try
        return self._warm(even if fits else Shares((share,) * len(devices)))

    def _warm(self, split: Shares) -> Series:
        self.watch(Doing(f"warming up the even split {split}, to compare with"))
        series = self._series(split, "even")
        self.party.ask(series.warm_up)
        return series

    def result(self) -> Run | None:
        """The result of what was measured so far; None until the split has a window."""
        asked, own, facts, solo = self.asked, self.own, self.party.facts, self.solo
        if not own.windows:
            return None
        used, began_s, even = asked.split.used, own.began_s, None
        if self.even is not None and self.even.windows:
            began_s = min(began_s, self.even.began_s)
            even = self.even.measurement(used, began_s)
        measured = own.measurement(used, began_s)
        rate, times = measured.throughput.median, measured.step_time_s.samples
        faster = even and ratio(rate / even.throughput.median, times, even.step_time_s.samples)
        solo_sum = sum(one.throughput for one in solo) if solo else None
        held = self.held.throughput if self.held and self.held.windows else None
        batches = {"batches": asked.split.batches, "micro_batches": asked.split.micro_batches}
        return Run(
            created=now(),
            settings=asked.settings,
            environment=environment(asked.driver),
            model=facts.model,
            devices=asked.devices,
            **{**dict(measured), **batches},
            warmup_steps=own.warmup_steps,
            steps=own.steps,
            stamp_cost=own.stamp_cost,
            pack_bytes=facts.pack_bytes,
            baselines=Baselines(
                even=measured if self.is_even else even,
                solo_best=solo,
                solo_sum=solo_sum,
            ),
            speedup_over_even=1.0 if self.is_even else faster and faster.value,
            speedup_ci95=(1.0, 1.0) if self.is_even else faster and faster.ci95,
            scaling_efficiency=solo_sum and rate / solo_sum,
            pipeline=self.alone
            and held_against(self.alone, held, alone_in_use(solo, asked.split.batches)),
            complete=self.complete,
            warnings=(*self.warnings, *self._found(measured)),
        )

    def _found(self, measured: Measurement) -> Iterator[Warning_]:
        """Warnings of what else was found, and those about the figures."""
        if len(measured.batches) > 1:
            yield from (warning("not-exact", text=text) for text in self.party.facts.verdict.warned)
        yield from resumed(self.again)
        known = [one for one in self.series if one.windows]
        excess_part = measured.excess_s / measured.step_time_s.median
        yield from of_figures(
            self.request.settings.model, self.own.slowed, known, excess_part=excess_part
        )
        yield from batches_joined(
            self.alone.joined_from if self.alone else None, measured.global_batch
        )
