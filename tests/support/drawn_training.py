"""A training on drawn devices, which nobody waits for: the product's rule decides on its split."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, cast

from gpubalance.planning.follow import Rebalancer, SplitChange
from gpubalance.planning.parts import StepTimes
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from tests.jobs.drawn import DrawnWorker, Offset, on_its_line
from tests.jobs.probes import devices_of
from tests.support.known import known

_AHEAD = 2  # batches that were dispatched before a change


def taken_s(
    devices: Sequence[Device],
    joint: JointProfile,
    split: BatchSplit,
    factors: Sequence[float],
) -> float:
    """Seconds of a step without noise, if each device's compute takes so many times as long."""
    busy_s = []
    parts = zip(devices, split.batches, split.micro_batches, factors, strict=True)
    for device, batch, micro_batch, factor in parts:
        busy_s.append(factor * known(device.profile).compute_s(batch, micro_batch))
    return max(busy_s) + joint.sync_s


def drawn_pair(seed: int) -> tuple[Device, ...]:
    """Two unlike cards whose fixed costs are up to those of 60 samples."""
    random = Random(seed)
    cards = []
    for _ in range(2):
        beta_s = random.uniform(0.0002, 0.0008)
        alpha_s = 60 * beta_s * random.random()
        cards.append(DeviceProfile(name="card", alpha_s=alpha_s, beta_s=beta_s))
    return devices_of(*cards)


def planned_samples(devices: Sequence[Device]) -> list[float]:
    """Each device's fixed cost in samples, as a plan knows it."""
    profiles = [known(device.profile) for device in devices]
    return [profile.alpha_s / profile.beta_s for profile in profiles]


def gain_of(
    devices: Sequence[Device], joint: JointProfile, change: SplitChange
) -> float:
    """How many times as fast the split after a change truly is."""
    before_s = taken_s(devices, joint, change.before, (1.0, 1.0))
    return before_s / taken_s(devices, joint, change.after, (1.0, 1.0))


class DrawnTraining:
    """Trains step after step; `split` is the present one.

    `took_s` is what all its steps took, `last` the times of the last one.
    """

    last: StepTimes

    def __init__(
        self,
        devices: Sequence[Device],
        joint: JointProfile,
        split: BatchSplit,
        *,
        limits: Sequence[int | None] = (),
        multiple: int = 1,
        every: int = 1,
        rebalance: bool = True,
        seed: int = 0,
        correlation: float = 0.0,
        offset: Offset = on_its_line,
        fixed_samples: Sequence[float | None] = (),
    ) -> None:
        drawn: Any = {"seed": seed, "correlation": correlation, "offset": offset}
        self._worker = DrawnWorker(devices, joint, **drawn)
        self._sync_s = joint.sync_s
        self._every = every
        self._rebalance = rebalance
        self._dispatched = deque([split] * _AHEAD)
        known_limits = limits or [None] * len(devices)
        self.follower = Rebalancer(known_limits, multiple, fixed_samples)
        self.split = split
        self.steps = 0
        self.took_s = 0.0
        self.changes: list[SplitChange] = []

    def train(self, steps: int) -> None:
        """Trains so many steps."""
        for _ in range(steps):
            self._step()

    def train_until(self, seconds: float) -> None:
        """Trains until so many seconds have passed since the first step began."""
        while self.took_s < seconds:
            self._step()

    def _step(self) -> None:
        self.steps += 1
        self._dispatched.append(self.split)
        split = self._dispatched.popleft()
        timing = cast("Timing", next(self._worker.measure(split, stamped=True)))
        self.took_s += timing.seconds
        times_s = known(timing.compute_s), known(timing.update_s)
        self.last = StepTimes(*times_s, split, self._sync_s)
        if self._rebalance and self.steps % self._every == 0:
            change = self.follower.note(self.steps, self.last)
            if change is not None:
                self.changes.append(change)
                self.split = change.after
