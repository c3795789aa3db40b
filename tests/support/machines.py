"""Random machines on which `balance` itself runs, with times that are drawn and that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, cast

import numpy as np

from gpubalance.errors import Interrupted
from gpubalance.jobs.balance.balance import find_and_prove
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.proof import result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.events import Watch
from gpubalance.jobs.probe.probed_device import fitted
from gpubalance.planning.curve import octaves
from gpubalance.results.plan import Plan
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import DrawnGroup, Offset, nothing_kept, quiet
from tests.jobs.probes import SMALL, devices_of, held_by, point_of, probe_of
from tests.support.known import known

MULTIPLE = 8
_NOISE = 0.005
# How far each device is off its usual time in each of many steps, in units of its noise.
_OFF_IN_STEPS = np.random.default_rng(0).standard_normal((4000, 5))
_SYNC = 0.2  # the longest sync, as a part of the slowest device's step at 512
_MIB = 1 << 20


@dataclass(frozen=True)
class Machine:
    """Random devices whose times are off their lines by up to `off`, up or down.

    Each size is off by another part.

    With `updates` each has an update of 0 to 10 % of its compute at its limit. With `links` each
    has a sync of its own, of which the longest in use counts, in place of one for all.
    """

    seed: int
    off: float
    updates: bool = True
    links: bool = False

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        random = Random(f"devices {self.seed}")
        drawn = [_profile(random, self.updates) for _ in range(random.randint(2, 5))]
        if not self.links:
            return devices_of(*drawn)
        own = []
        for one in drawn:
            sync_s = random.uniform(0, _SYNC) * _longest_s(drawn)
            own.append(one.model_copy(update={"sync_s": sync_s}))
        return devices_of(*own)

    @cached_property
    def joint(self) -> JointProfile:
        """A sync of up to a fifth of the slowest device's step at 512.

        Sometimes the joint step also takes more memory than planners expect.
        """
        random = Random(f"joint {self.seed}")
        longest_s = _longest_s([known(device.profile) for device in self.devices])
        sync_s = random.uniform(0, _SYNC) * longest_s
        extra = random.choice([0, 0, 0, 40 * _MIB])
        return JointProfile(sync_s=0.0 if self.links else sync_s, extra_memory=extra)

    def sync_s(self, used: Sequence[int]) -> float:
        """The true sync of these devices."""
        if len(used) < 2:
            return 0.0
        own_s = [known(self.devices[device].profile).sync_s for device in used]
        return max(self.joint.sync_s, *own_s)

    @cached_property
    def wanted(self) -> PlanRequest:
        """The request: half of the machines have a free global batch, a quarter a given one.

        The others accumulate.
        """
        random = Random(f"wanted {self.seed}")
        kind = random.choice(["free", "free", "global batch", "accumulate"])
        if kind == "global batch":
            maximum = sum(limit_of(device) for device in self.devices)
            wanted = random.randint(8, maximum // 16) * MULTIPLE
            return PlanRequest(accumulate=1, global_batch=wanted)
        return PlanRequest(accumulate="auto" if kind == "accumulate" else 1)

    def offset(self, device: Device, size: int) -> float:
        """A device's time with `size` samples at a time, over that of its line."""
        random = Random(f"{self.seed} {device.uuid} {size}")
        return 1 + random.uniform(-self.off, self.off)

    def time_s(self, device: Device, batch: int, micro_batch: int) -> float:
        """Seconds of compute and update, without noise."""
        update_s = known(device.profile).update_s
        return self._compute_s(device, batch, micro_batch) + update_s

    def _compute_s(self, device: Device, batch: int, micro_batch: int) -> float:
        profile = known(device.profile)
        return profile.compute_s(batch, micro_batch) * self.offset(device, micro_batch)

    def rate(self, split: BatchSplit, noise: float = _NOISE) -> float:
        """The true samples per second of a split.

        A step takes as long as its last device, and with noise that is not always the same one.
        """
        busy_s = []
        for number in split.used:
            device = self.devices[number]
            batch, micro_batch = split.batches[number], split.micro_batches[number]
            noises = 1 + noise * _OFF_IN_STEPS[:, number]
            compute_s = self._compute_s(device, batch, micro_batch) * noises
            busy_s.append(compute_s + known(device.profile).update_s)
        steps_s = np.max(busy_s, axis=0)
        return split.global_batch / float(np.mean(steps_s) + self.sync_s(split.used))

    @cached_property
    def probe(self) -> Probe:
        probe = probe_of(self.devices, multiple=MULTIPLE)
        alone = [self._alone(one, probe.devices[one.device]) for one in probe.probes]
        return probe.model_copy(update={"probes": tuple(alone)})

    def _alone(self, one: DeviceProbe, device: Device) -> DeviceProbe:
        sizes = octaves(MULTIPLE, limit_of(device), MULTIPLE)
        times = [(size, self.time_s(device, size, size)) for size in sizes]
        curve = tuple(point_of(known(device.profile), *point) for point in times)
        model = fitted([(size, time_s, 0.0) for size, time_s in times])
        return one.model_copy(update={"curve": curve, "step_time_model": model})

    def balanced(
        self,
        watch: Watch | None = None,
        offset: Offset | None = None,
        group_of: type[DrawnGroup] = DrawnGroup,
    ) -> Plan:
        """The plan that the job ends with; `offset` replaces the machine's own."""
        watch = watch or quiet
        request = BalanceRequest(
            devices=self.devices,
            settings=SMALL,
            joint=self.joint,
            plan=self.wanted,
            measuring=Measuring(baseline="none"),
        )
        drawn: Any = {"seed": self.seed, "offset": offset or self.offset}
        worker_group = cast("WorkerGroup", group_of(self.devices, self.joint, **drawn))
        given = request, self.probe.model, worker_group, watch
        joint_workers = JointWorkers(*given, nothing_kept())
        rounds = BalanceRounds(joint_workers, self.probe)
        try:
            return find_and_prove(rounds)
        except KeyboardInterrupt as interrupt:
            raise Interrupted.by(interrupt, partial=result_so_far(rounds)) from None


def _longest_s(profiles: Sequence[DeviceProfile]) -> float:
    return max(one.compute_s(512) for one in profiles)


def _profile(random: Random, updates: bool) -> DeviceProfile:
    limit = random.randint(8, 128) * MULTIPLE
    alpha_s = random.uniform(0.005, 0.05)
    beta_s = 2e-4 * 10 ** random.uniform(0, 0.8)
    update_s = random.uniform(0, 0.1) * (alpha_s + beta_s * limit)
    return DeviceProfile(
        name="drawn",
        alpha_s=alpha_s,
        beta_s=beta_s,
        update_s=update_s if updates else 0.0,
        memory=(limit + 1) * 4 * _MIB + 64 * _MIB,
        base_memory=64 * _MIB,
        memory_per_sample=4 * _MIB,
        noise=_NOISE,
    )


def limit_of(device: Device) -> int:
    """A device's batch limit alone."""
    return held_by(known(device.profile)) // MULTIPLE * MULTIPLE
