"""A run of a split and the even split in turns, as far as it has come, and the result made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpubalance.jobs.environment import environment, now
from gpubalance.jobs.events import Doing, TimingDone, Watch
from gpubalance.jobs.keep.kept import Kept, RunKey
from gpubalance.jobs.measure.sensors import Sensors
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.warnings import throttled, warnings
from gpubalance.results.common import Model, Throughput, Warning_
from gpubalance.results.run import Baselines, Measurement, Run, SoloBest
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Build, Party


def party_for(request: RunRequest | BalanceRequest, watch: Watch, limit: TimeLimit) -> Party:
    """A party of one worker for all of the request's devices."""
    measuring = request.measuring
    return Party(
        request.devices,
        build=Build(request.settings, request.joint, measuring.seed),
        deadline_s=measuring.deadline_s,
        limit=limit,
        tell=lambda text: watch(Doing(text)),
    )


def model_of(party: Party) -> Model:
    """What a party that has started trains."""
    facts = party.facts
    return Model(name=facts.model, parameters=facts.parameters, gradient_bytes=facts.gradient_bytes)


def joint_series(request: RunRequest, split: Shares, watch: Watch, name: str = "") -> Series:
    """A series of a split on the request's devices, which all have samples: watched, and its GPUs read."""
    devices, sensors = request.devices, Sensors(request.devices)

    def tell(timing: Timing) -> None:
        watch(TimingDone(name, devices, split.batches, timing.seconds / timing.steps, timing.compute_s, sensors.latest))

    return Series(split, sensors, watch=tell)


@dataclass
class JointRun:
    """A run of a split and of the even split in turns, as far as it has come.

    `asked` may have devices without samples, `request` has none. `proof` tells the runs of one `balance` apart.
    """

    asked: RunRequest
    party: Party
    driver: str | None
    watch: Watch
    kept: Kept
    solo: tuple[SoloBest, ...] | None = None
    proof: int = 0
    even: Series | None = None
    warnings: list[Warning_] = field(default_factory=list)
    measured_again: bool = False
    complete: bool = False

    def __post_init__(self) -> None:
        self.request = self.asked.of_used
        self.own = joint_series(self.request, self.request.split, self.watch)

    @property
    def series(self) -> list[tuple[str, Series]]:
        """What is measured in turns, by name: "" is the run's own split."""
        return [("", self.own), *([("even", self.even)] if self.even else [])]

    @property
    def slowed(self) -> list[tuple[Device, tuple[str, ...]]]:
        """Each GPU that was throttled for a reason that passes, with NVML's reasons."""
        found = zip(self.request.devices, self.own.throttled, strict=True)
        return [(device, reasons) for device, reasons in found if reasons]

    @property
    def key(self) -> RunKey:
        """Which run its windows are of, in a journal."""
        uuids = tuple(device.uuid for device in self.request.devices)
        return RunKey(devices=uuids, model=model_of(self.party), proof=self.proof)

    def result(self) -> Run | None:
        """The result of what was measured so far; None where the split has no timing of each kind yet."""
        asked, own = self.asked, self.own
        if not own.timings or not own.stamped:
            return None
        numbers = asked.split.used
        began_s = min(one.began_s for one in (own, self.even) if one and one.stamped)
        measured = own.measurement(numbers, began_s)
        even = self._even_baseline(measured, numbers, began_s)
        facts = self.party.facts
        solo_sum = sum(best.throughput for best in self.solo) if self.solo else None
        return Run(
            created=now(),
            settings=asked.settings,
            environment=environment(facts, self.driver),
            model=model_of(self.party),
            devices=asked.devices,
            **{
                **{name: getattr(measured, name) for name in Measurement.model_fields},
                "batches": asked.split.batches,
                "micro_batches": asked.split.micro_batches,
            },
            warmup_steps=own.warmup_steps,
            steps=own.steps,
            stamp_cost=own.stamp_cost,
            baselines=Baselines(even=even, solo_best=self.solo, solo_sum=solo_sum),
            speedup_over_even=even and measured.throughput.median / even.throughput.median,
            speedup_ci95=even and _ratio_interval(measured.throughput, even.throughput),
            scaling_efficiency=solo_sum and measured.throughput.median / solo_sum,
            complete=self.complete,
            warnings=(
                *self.warnings,
                *([throttled(self.slowed)] if self.slowed else []),
                *warnings(
                    own, self.even, asked.settings.model, excess_part=measured.excess_s / measured.step_time_s.median
                ),
            ),
        )

    def _even_baseline(self, measured: Measurement, numbers: Sequence[int], began_s: float) -> Measurement | None:
        if self.even is not None:
            return self.even.measurement(numbers, began_s) if self.even.timings and self.even.stamped else None
        split = self.own.split
        is_even = split == Shares.even(split.global_batch, len(split.batches))
        wanted = self.request.measuring.baseline == "even" and len(numbers) > 1
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
