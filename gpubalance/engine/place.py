"""The devices of a strategy, as the step and its data need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpubalance.engine.pace import Clock
from gpubalance.settings.cluster import Cluster


@dataclass(frozen=True)
class Place:
    """A strategy over the devices that get samples, their clocks, and TensorFlow's names for this process's devices.

    In a cluster each process has one of the devices.
    """

    strategy: Any
    names: tuple[str, ...]
    clocks: tuple[Clock, ...]
    labels: tuple[str, ...] = ()
    cluster: Cluster | None = None

    @property
    def first(self) -> int:
        """The index of this process's first device among all."""
        return self.cluster.rank if self.cluster else 0

    @property
    def replicas(self) -> int:
        """The number of devices in all processes."""
        return len(self.clocks)
