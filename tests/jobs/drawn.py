"""Makes runs with random step times that nobody waits for.

The job is the real one, and the noise is the simulated devices' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from gpubalance.devices.profile import simulated_devices
from gpubalance.engine.pace import ComputeTimes, noise_seed
from gpubalance.errors import GpubalanceError, OutOfMemory
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.events import Event, Watch
from gpubalance.jobs.journal import Journal, free_journal
from gpubalance.jobs.measure.figures import measurement
from gpubalance.jobs.measure.joint import JointRun
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.window import Sensors, Window
from gpubalance.results.common import Model
from gpubalance.results.run import Measurement, Run
from gpubalance.results.timing import Overhead, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Measured, Ready, SumsTimed, TimeSums
from gpubalance.workers.worker_group import WorkerGroup
from tests.support.altered import altered
from tests.support.known import known


def noisy_devices(
    profile: Path, noise: float, slower: float = 1.0
) -> tuple[tuple[Device, ...], JointProfile]:
    """A profile's devices and joint profile with that noise, all times multiplied by `slower`."""
    devices, joint = simulated_devices(str(profile))
    changed = []
    for device in devices:
        paced = altered(known(device.profile), noise=noise)
        for name in ("alpha_s", "beta_s"):
            paced = altered(paced, **{name: slower * getattr(paced, name)})
        changed.append(altered(device, profile=paced))
    return tuple(changed), altered(joint, sync_s=slower * joint.sync_s)


def ready(devices: int) -> Ready:
    """The message of a worker that has built the small model on so many devices."""
    model = Model(name="small", parameters=648, gradient_bytes=2592)
    return Ready(model=model, memory_limit_bytes=(None,) * devices)


def windows_of(
    timings: Sequence[Timing],
    stamped: Sequence[Timing] = (),
    devices: int = 2,
    **more: Any,
) -> list[Window]:
    """One window of these timings."""
    usual: Any = {"throttled": ((),) * devices, "late_part": 0.0}
    usual["memory_peak_bytes"] = (None,) * devices
    return [Window(timings=timings, stamped=stamped, **usual | more)]


def measured(windows: Sequence[Window]) -> Measurement:
    """What these windows amount to, of 4 samples on each device."""
    return measurement(BatchSplit((4,) * len(windows[0].throttled)), windows, Sensors())


T = TypeVar("T")


def quiet(event: Event) -> None:
    """Watches and tells nobody."""


# An offset is the factor by which a device's time at a size is off its line.
Offset = Callable[[Device, int], float]


def on_its_line(_: Device, size: int) -> float:
    """The offset of devices that are as their profiles say."""
    return 1.0


class DrawnWorker:
    """Answers like a worker on simulated devices, with a clock that only counts.

    `correlation` is that of a step's noise with the next step's (AR(1)), 0 for simulated devices.
    `clock_s` is the clock's first time.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        joint: JointProfile,
        *,
        seed: int,
        correlation: float = 0.0,
        clock_s: float = 0.0,
        offset: Offset = on_its_line,
    ) -> None:
        self._devices = [device for device in devices if device.profile]
        self._offset = offset
        self._profiles = [device.profile for device in devices if device.profile]
        self._times = []
        for number, profile in enumerate(self._profiles):
            self._times.append(ComputeTimes(profile, seed=noise_seed(seed, number)))
        self._updates_s = tuple(profile.update_s for profile in self._profiles)
        self._off = [0.0] * len(self._times)
        self._sync_between = joint
        self._joint = JointProfile()
        if len(devices) > 1:
            self._joint = joint.among(self._profiles)
        self._noise_of_sums = Random(f"sums {seed}")
        self._correlation = correlation
        self._elapsed_s = 0.0
        self._clock_s = clock_s
        self.facts = ready(len(devices))
        self.settings = Settings(model="small")

    def measure(
        self,
        split: BatchSplit,
        *,
        seconds: float = 0.0,
        at_least: int = 1,
        steps_per_timing: int = 1,
        stamped: bool = False,
        **_: object,
    ) -> Iterator[Timing | Measured]:
        self._hold(split.micro_batches)
        end = self._elapsed_s + seconds
        given = 0
        while given < at_least or self._elapsed_s < end:
            count = 1 if stamped else steps_per_timing
            steps = [self._step(split) for _ in range(count)]
            taken_s = sum(map(self._taken_s, steps))
            told: Any = {"steps": count, "seconds": taken_s, "step_s": taken_s}
            if stamped:
                told |= {"compute_s": steps[0], "update_s": self._updates_s}
            now_s = self._clock_s + self._elapsed_s
            yield Timing(ended_s=now_s, input_wait_s=0.0, **told)
            given += 1
        extra = self._joint.extra_memory
        sizes = zip(self._profiles, split.micro_batches, strict=True)
        peaks = tuple(profile.memory_at(size, extra) for profile, size in sizes)
        yield Measured(memory_peak_bytes=peaks, late_part=float(stamped))

    def ask(self, request: TimeSums, _: type[SumsTimed]) -> SumsTimed:
        """The sync of each group, up to some per cent off."""
        seconds = []
        for places in request.groups:
            joint = self._sync_between.among(self._profiles[i] for i in places)
            seconds.append(joint.sync_s * self._noise_of_sums.uniform(0.98, 1.02))
        return SumsTimed(seconds=tuple(seconds))

    def _hold(self, sizes: Sequence[int]) -> None:
        """Raises OutOfMemory for the first device that does not hold so many samples at a time."""
        held = zip(self._profiles, sizes, strict=True)
        for replica, (profile, size) in enumerate(held):
            needed = profile.memory_at(size, self._joint.extra_memory)
            if profile.memory is not None and needed > profile.memory:
                full = f"replica {replica} ran out of memory"
                raise OutOfMemory(full, replica=replica)

    def _step(self, split: BatchSplit) -> tuple[float, ...]:
        parts = zip(split.batches, split.micro_batches, strict=True)
        computes = tuple(
            self._compute_s(replica, *part) for replica, part in enumerate(parts)
        )
        self._elapsed_s += self._taken_s(computes)
        return computes

    def _taken_s(self, computes: Sequence[float]) -> float:
        """A step's time: all devices meet in the all-reduce.

        A device begins its next batch once its own update is over.
        """
        busy_s = map(sum, zip(computes, self._updates_s, strict=True))
        return max(busy_s) + self._joint.sync_s

    def _compute_s(self, replica: int, batch: int, micro_batch: int) -> float:
        now_s = self._elapsed_s
        drawn = self._times[replica].next_s(batch, micro_batch, elapsed_s=now_s)
        drawn *= self._offset(self._devices[replica], micro_batch)
        if not self._correlation:
            return drawn
        profile = self._profiles[replica]
        exact = profile.compute_s(batch, micro_batch) * profile.drift_at(now_s)
        fresh = (1 - self._correlation**2) ** 0.5 * (drawn / exact - 1)
        self._off[replica] = self._correlation * self._off[replica] + fresh
        return exact * (1 + self._off[replica])


class DrawnGroup:
    """A group of such workers, with another one for other devices, as in a real group."""

    def __init__(
        self,
        devices: Sequence[Device],
        joint: JointProfile,
        *,
        seed: int = 0,
        offset: Offset = on_its_line,
    ) -> None:
        self._joint = joint
        self._seed = seed
        self._offset = offset
        self.overhead = Overhead()
        self._devices: tuple[Device, ...] = ()
        self.regroup(devices)

    def regroup(self, devices: Sequence[Device]) -> None:
        if tuple(devices) != self._devices:
            self._devices = tuple(devices)
            seed = self._seed + self.overhead.workers
            self._worker = DrawnWorker(
                devices, self._joint, seed=seed, offset=self._offset
            )
            self.overhead += Overhead(workers=1)

    @property
    def facts(self) -> Ready:
        return self._worker.facts

    alive = True

    failures: Mapping[int, GpubalanceError] = {}

    @contextmanager
    def worker(self, _: int = 0) -> Iterator[DrawnWorker]:
        yield self._worker

    def each(
        self, work: Callable[[int, DrawnWorker], T], among: Sequence[int]
    ) -> dict[int, T]:
        return {number: work(number, self._worker) for number in among}

    def end(self) -> None:
        pass


def drawn_run(
    devices: Sequence[Device],
    joint: JointProfile,
    batches: Sequence[int],
    *,
    seed: int,
    correlation: float = 0.0,
    measuring: Measuring | None = None,
    watch: Watch | None = None,
) -> Run:
    """The run that the real job makes of such a worker's answers."""
    request = RunRequest(
        devices=tuple(devices),
        split=BatchSplit(tuple(batches)),
        settings=Settings(model="small"),
        joint=joint,
        measuring=measuring or Measuring(baseline="none"),
    )
    worker = DrawnWorker(devices, joint, seed=seed, correlation=correlation)
    return joint_run(request, group_of(worker), watch or quiet, nothing_kept())


def joint_run(
    request: RunRequest,
    worker_group: WorkerGroup,
    watch: Watch,
    journal: Journal,
    proof: int = 0,
) -> Run:
    """The run that the real job makes with this worker group."""
    job = JointRun(request, Measurer(worker_group, journal, watch, key=proof))
    with attach_partial(job.state.result):
        job.measure()
    # Stamped steps, all of which are late here, do not count.
    for windows in job.measurer.windows.values():
        assert not any(window.late_part for window in windows)
    return cast("Run", job.state.result())


def nothing_kept() -> Journal:
    """A journal in which nothing is left, and nothing is kept."""
    journal = free_journal("nothing", resume=False)
    journal.is_full = True
    journal.close()
    return journal


def group_of(worker: DrawnWorker) -> WorkerGroup:
    """A worker group that has this worker and never fails."""
    worker_group = DrawnGroup((), JointProfile())
    worker_group._worker = worker
    worker_group.overhead = Overhead(workers=1)
    return cast("WorkerGroup", worker_group)


def drawn_workers(asked: BalanceRequest, offset: Offset = on_its_line) -> JointWorkers:
    """The workers of a balance on drawn devices, of which nothing is kept."""
    worker_group = DrawnGroup(asked.devices, asked.joint, offset=offset)
    group = cast("WorkerGroup", worker_group)
    return JointWorkers(asked, None, group, quiet, nothing_kept())
