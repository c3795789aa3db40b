"""The replicas of a strategy, their clocks, and how long sums over them take."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import keras
import tensorflow as tf

from gpubalance.devices.environment import gpu_environment
from gpubalance.engine import runtime
from gpubalance.engine.failures import used_before
from gpubalance.engine.keras_patches import collective_ops, taking_keys_at_once
from gpubalance.engine.pace import Clock, PacedClock, clocks
from gpubalance.engine.runtime import (
    gather_over,
    implementation_of,
    repetitions,
    use_devices,
)
from gpubalance.engine.step.sums import over_replicas
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


def take_names(devices: Sequence[Device], *, joins: bool = False) -> tuple[str, ...]:
    """Sets TensorFlow up in the user's own process; returns its names for these devices.

    `joins`: the process joins a cluster next, so TensorFlow's runtime is not started yet. Warns
    once of a TensorFlow or Keras newer than what was tested. Raises EnvironmentFault if TensorFlow
    was used before without the devices.
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
    return use_devices(devices, joins=joins)


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
        return runtime.join_cluster(cluster, kind, all_reduce)
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


_MIN_TIMES = 3  # that a sum is repeated
# The long function has this many sums more than the short one: latency = (long - short) / this.
_MORE_SUMS = 16
# The processes of a cluster find each other in a sum by two numbers: the group's number, far from
# those of strategies' groups, and the sum's number, new each time. All processes must draw the same
# two.
_timed_group_numbers = itertools.count(1 << 21)
_sum_numbers = itertools.count(1)

# Takes the length of the float32 vectors to sum, an int32 scalar. Returns a scalar for each replica
# of this process that takes part: one element of its last sum, computed once that sum has ended.
Sum: TypeAlias = Callable[[Any], Iterable[Any]]


def seconds_of_sum(
    replicas: Replicas,
    replica_indices: tuple[int, ...],
    nbytes: int,
    *,
    repeat_for_s: float = 0.0,
) -> float:
    """The seconds of a sum of `nbytes` bytes of float32 over these replicas.

    A step sums its gradients by the same operation. The sum is repeated for `repeat_for_s` seconds,
    and at least three times. The fastest one counts: on a busy machine many sums are slower. In a
    cluster all processes must call this together; the slowest process's time counts.

    `Session.time_sums` calls this, and `_link_of` in engine/step/functions.py.
    """
    return _fastest_s(
        replicas, replica_indices, nbytes=nbytes, sums=1, repeat_for_s=repeat_for_s
    )


def seconds_of_one_more(replicas: Replicas, replica_indices: tuple[int, ...]) -> float:
    """The latency: the seconds by which one more sum of a single number lengthens a function.

    It is (the time of a function with 17 sums - that with 1 sum) / 16. The time of the function
    with 1 sum is several times the latency. Most of it is the function's start, which a step pays
    once for all its sums. In a cluster all processes must call this together; there the sums run
    one by one, without a function.

    `_link_of` in engine/step/functions.py calls this.
    """
    short_s = _fastest_s(replicas, replica_indices, nbytes=0, sums=1)
    long_s = _fastest_s(replicas, replica_indices, nbytes=0, sums=1 + _MORE_SUMS)
    return max(0.0, long_s - short_s) / _MORE_SUMS


def _fastest_s(
    replicas: Replicas,
    replica_indices: tuple[int, ...],
    *,
    nbytes: int,
    sums: int,
    repeat_for_s: float = 0.0,
) -> float:
    """The seconds that a function of `sums` sums takes, the fastest of several times.

    A sum is of `nbytes` bytes of float32, and at least of one number. In a cluster it is the
    fastest time of the slowest process.
    """
    sum_of = sum_over(replicas, replica_indices, sums)
    # Takes a number of this process; returns those of all processes, by rank.
    gather = gather_over(replicas.strategy, replicas.cluster)

    # A sum waits for all processes, so all must repeat it equally often.
    def as_rank_0_decides(goes_on: bool) -> bool:
        return bool(gather(goes_on)[0])

    count = tf.constant(max(1, nbytes // 4))
    times_s = []
    for _ in repetitions(repeat_for_s, _MIN_TIMES, as_rank_0_decides):
        began_s = time.perf_counter()
        for element in sum_of(count):
            element.numpy()  # waits for the device
        times_s.append(time.perf_counter() - began_s)
    fastest_of_each_process_s = gather(min(times_s))
    return max(fastest_of_each_process_s)


@cached_on_replicas
def sum_over(
    replicas: Replicas, replica_indices: tuple[int, ...], sums: int = 1
) -> Sum:
    """A function that sums over these replicas `sums` times, one sum after the other.

    All processes of a cluster must make and call the function, also one that has none of these
    replicas.
    """
    if replicas.cluster is not None:
        return _between_processes(replicas, replica_indices, sums)
    names = tuple(replicas.names[index] for index in replica_indices)
    # If these are all replicas, `build_strategy` returns the strategy that they train with. On GPUs
    # each strategy takes memory of its own.
    strategy = build_strategy(names, replicas.summing.all_reduce, replicas.cluster)

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)], autograph=False)
    def summed(count: Any) -> Any:
        def on_replica() -> Any:
            ones = tf.fill([count], 1.0)
            (total,) = over_replicas([ones])
            for _ in range(sums - 1):
                # Each sum takes the total of the one before, so that they can't overlap.
                ones = total / len(replica_indices)
                (total,) = over_replicas([ones])
            return total[0]

        with taking_keys_at_once():
            return strategy.experimental_local_results(strategy.run(on_replica))

    return summed  # type: ignore[no-any-return]


def _between_processes(
    replicas: Replicas, replica_indices: tuple[int, ...], sums: int
) -> Sum:
    """A sum over some processes of a cluster, each of which has one replica.

    There is no strategy for some processes, only one for the whole cluster. So this calls the
    operation that the strategy itself uses to sum.
    """
    # All processes draw the same group number, because they make these functions in the same order.
    group = next(_timed_group_numbers)
    (name,) = replicas.names
    device_type, _, _ = name.partition(":")  # `CPU` or `GPU`
    hint = implementation_of(replicas.summing.all_reduce, device_type).value

    def sum_of_own(count: Any) -> Any:
        """Takes part in the sums with this process's vector; returns [] if it takes no part."""
        # A process that takes no part draws these numbers too: all processes must draw the same.
        sum_numbers = [next(_sum_numbers) for _ in range(sums)]
        if replicas.first_own not in replica_indices:
            return []
        # Starts as the total of all replicas' ones, so that the loop's first division gives ones.
        total = tf.fill([count], float(len(replica_indices)))
        with tf.device(name):
            for sum_number in sum_numbers:
                ones = total / len(replica_indices)
                total = collective_ops.all_reduce_v2(
                    ones,
                    len(replica_indices),
                    group,
                    sum_number,
                    communication_hint=hint,
                )
            return [total[0]]

    return sum_of_own
