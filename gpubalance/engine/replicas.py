"""The replicas of a strategy, as the step and its data need them; and their clocks."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras
import tensorflow as tf

from gpubalance.devices.environment import gpu_environment
from gpubalance.engine import runtime
from gpubalance.engine.failures import used_before
from gpubalance.engine.pace import Clock, PacedClock, clocks
from gpubalance.engine.runtime import use_devices
from gpubalance.engine.user_functions import warn_user
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import AS_USUAL, Summing
from gpubalance.system.versions import untested

# The UUIDs that were visible when CUDA and TensorFlow first looked for GPUs in this process: they
# look only once.
_shown: list[str] = []
# The indices of simulated devices in the order of their first use: each is the CPU device of its
# place here.
_simulated: list[int] = []

Given = ParamSpec("Given")
T = TypeVar("T")


@dataclass(frozen=True)
class Replicas:
    """A strategy's replicas, one on each device that gets samples, with their clocks and labels.

    `names` are TensorFlow's for this process's devices: in a cluster each process has one device.
    """

    strategy: Any
    names: tuple[str, ...]
    clocks: tuple[Clock, ...]
    labels: tuple[str, ...] = ()
    cluster: Cluster | None = None
    summing: Summing = AS_USUAL
    # Results by function and its other arguments: see `cached_on_replicas`.
    cached: dict[Any, Any] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    @property
    def first_own(self) -> int:
        """The index of this process's first replica among all."""
        return self.cluster.rank if self.cluster else 0

    @property
    def own_slice(self) -> slice:
        """The indices of this process's replicas among all."""
        return slice(self.first_own, self.first_own + len(self.names))

    @property
    def count(self) -> int:
        """How many there are in all processes."""
        return len(self.clocks)


def cached_on_replicas(
    function: Callable[Concatenate[Replicas, Given], T],
) -> Callable[Concatenate[Replicas, Given], T]:
    """As `functools.cache`, for a function of replicas: they keep its results while they live."""

    @functools.wraps(function)
    def cached(replicas: Replicas, /, *given: Given.args, **named: Given.kwargs) -> T:
        key = function, given, tuple(named.items())
        if key not in replicas.cached:
            replicas.cached[key] = function(replicas, *given, **named)
        known: T = replicas.cached[key]
        return known

    return cached


def replicas_on(
    devices: Sequence[Device],
    names: tuple[str, ...],
    joint: JointProfile,
    summing: Summing,
    cluster: Cluster | None = None,
    *,
    seed: int = 0,
) -> Replicas:
    """The replicas on all these devices; TensorFlow's `names` are those of this process's."""
    profiles = [device.profile for device in devices]
    return Replicas(
        strategy=build_strategy(names, summing.all_reduce, cluster),
        names=names,
        clocks=tuple(
            clocks(profiles, joint, seed=seed, in_cluster=cluster is not None)
        ),
        labels=tuple(device.label for device in devices),
        cluster=cluster,
        summing=summing,
    )


def take_names(devices: Sequence[Device]) -> tuple[str, ...]:
    """Sets TensorFlow up in the user's own process; returns its names for these devices.

    Warns once of a TensorFlow or Keras newer than what was tested. Raises EnvironmentFault if
    TensorFlow was used before without the devices.
    """
    _warn_of_untested()
    if devices[0].simulated:
        for device in devices:
            if device.index not in _simulated:
                _simulated.append(device.index)
        return use_devices(
            devices, cpus=[_simulated.index(device.index) for device in devices]
        )
    uuids = [device.uuid for device in devices]
    if not _shown:
        os.environ.update(gpu_environment(devices))
        _shown.extend(uuids)
    if not set(uuids) <= set(_shown):
        raise used_before("does not see all of its GPUs")
    return use_devices(devices)


@functools.cache
def _warn_of_untested() -> None:
    newer = untested(tf.__version__, keras.__version__)
    if newer is not None:
        warn_user(f"{newer.text}: if something fails, {newer.remedy}")


# TensorFlow numbers each strategy's groups of collective operations from 1, and takes two groups
# with the same number in a process for one, even with other devices and sizes. These numbers are
# far from those of a user's own strategies.
_group_numbers = itertools.count(1 << 20)


class _Strategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """MirroredStrategy, with a collective group of its own."""

    def __init__(self, *arguments: Any) -> None:
        self._collective_key_base = next(_group_numbers)
        super().__init__(*arguments)


@functools.cache
def step_lock(strategy: Any) -> AbstractContextManager[Any]:
    """What a thread holds while it calls a step of a strategy.

    TensorFlow numbers a strategy's sums by device, when a step is called: of two threads' steps a
    device would sum one thread's gradients and another device the other's.
    """
    del strategy  # each has its own
    return threading.Lock()


@functools.cache
def build_strategy(
    names: tuple[str, ...], all_reduce: AllReduce, cluster: Cluster | None = None
) -> Any:
    """The process's only MirroredStrategy on these devices, or the whole cluster's strategy.

    There is one only, so that a model built for one split can train with another. It stays for as
    long as the process: NCCL gives the memory of a second group of the same GPUs never back, and
    TensorFlow's registry of gradients keeps each strategy that has summed in a traced step. `auto`
    is TensorFlow's own choice: NCCL for GPUs, a ring for CPUs.
    """
    if cluster is not None:
        kind, _, _ = names[0].partition(":")
        return runtime.join(cluster, kind, all_reduce)
    across = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    if all_reduce in across:
        return _Strategy(list(names), across[all_reduce]())
    # "auto", or the "ring" of several hosts, of which only one has samples.
    return _Strategy(list(names), None)


class DeviceTime:
    """The clocks of a process's devices, which all follow a profile or none does."""

    def __init__(self, clocks: Sequence[Clock]) -> None:
        self._paced = [clock for clock in clocks if isinstance(clock, PacedClock)]
        self.is_simulated = bool(self._paced)

    @property
    def now_s(self) -> float:
        """When the devices ended their last step, once they have nothing left to do."""
        if self.is_simulated:
            return max(clock.free_s for clock in self._paced)
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Simulated devices have nothing to do for so long, which is none of their time."""
        for clock in self._paced:
            clock.free_s += seconds

    def begin_timings(self, *, others_compute: bool) -> None:
        """Counts steps anew, and those too slow.

        `others_compute`: other devices compute meanwhile, so simulated ones take longer by their
        profile.
        """
        for clock in self._paced:
            clock.steps = clock.late_steps = 0
            clock.others_compute = others_compute

    def late_part(self) -> float | None:
        """The fraction of the counted steps slower than the profile, on the worst device."""
        parts = [clock.late_steps / clock.steps for clock in self._paced if clock.steps]
        return max(parts, default=None)
