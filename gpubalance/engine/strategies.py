"""The strategy that the process's devices train under."""

from __future__ import annotations

import functools
import itertools
import threading
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from gpubalance.engine import hosts
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.cluster import Cluster

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
        return hosts.join(cluster, kind, all_reduce)
    across = {
        "nccl": tf.distribute.NcclAllReduce,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
        "one-device": tf.distribute.ReductionToOneDevice,
    }
    if all_reduce in across:
        return _Strategy(list(names), across[all_reduce]())
    # "auto", or the "ring" of several hosts, of which only one has samples.
    return _Strategy(list(names), None)
