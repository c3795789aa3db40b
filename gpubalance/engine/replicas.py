"""The replicas of a strategy, as the step and its data need them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpubalance.devices.environment import gpu_environment
from gpubalance.engine.failures import used_before
from gpubalance.engine.pace import Clock, clocks
from gpubalance.engine.runtime import use_devices
from gpubalance.engine.strategies import build_strategy
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.summing import AS_USUAL, Summing

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
    # By function and its other arguments: see `kept_with_replicas`.
    kept: dict[Any, Any] = field(
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


def kept_with_replicas(
    function: Callable[Concatenate[Replicas, Given], T],
) -> Callable[Concatenate[Replicas, Given], T]:
    """Calls a function of replicas once for the same arguments, as `functools.cache` does.

    What it returned is kept with the replicas, and goes with them.
    """

    @functools.wraps(function)
    def kept(replicas: Replicas, /, *given: Given.args, **named: Given.kwargs) -> T:
        key = function, given, tuple(named.items())
        if key not in replicas.kept:
            replicas.kept[key] = function(replicas, *given, **named)
        known: T = replicas.kept[key]
        return known

    return kept


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

    Raises EnvironmentFault if it was used before without them.
    """
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
