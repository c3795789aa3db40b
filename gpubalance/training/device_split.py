"""A split on its devices: what its steps and its monitor know of it, and may change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.errors import BadInput
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import Precision
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import refuse_together
from gpubalance.settings.summing import AS_USUAL, Summing
from gpubalance.training.keras_functions import Trainer
from gpubalance.training.launched import reports
from gpubalance.training.sizes import Simulate

if TYPE_CHECKING:
    from gpubalance.engine.replicas import Replicas
    from gpubalance.results.plan import Plan


class DeviceSplit(Trainer):
    """The devices that have samples, their shares, and how they train together.

    `shares` may change between steps; `limits` are the most samples that each device takes at a
    time, `fixed_samples` how many take as long as its step's fixed cost, None where unknown.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        shares: BatchSplit,
        joint: JointProfile,
        summing: Summing = AS_USUAL,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__()
        self.devices = tuple(devices[i] for i in shares.used)
        refuse_together(self.devices, summing.all_reduce, devices)
        self._cluster = cluster
        self._joint = joint
        self._summing = summing
        self.shares = shares.without_idle
        self.limits = _known_limits(self.shares)
        self.fixed_samples: Sequence[float | None] = ()
        self.takes_any_batch = False
        self.precision: Precision | None = None  # that the scope sets
        self.plan: Plan | None = None
        self.plan_file: str | Path | None = None  # where the plan was
        self.simulate: Simulate = None  # what the plan was loaded with
        self.warned: set[str] = set()
        # Else the scope will load it
        if len(self.devices) > 1 and "keras" in sys.modules:
            from gpubalance.training.scope import expect

            expect(self)

    @property
    def batches(self) -> tuple[int, ...]:
        """Samples of each device in a step."""
        return self.shares.batches

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Samples that each device takes at a time: its whole batch unless it accumulates."""
        return self.shares.micro_batches

    @property
    def global_batch(self) -> int:
        """Samples of all devices in a step."""
        return self.shares.global_batch

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes: the only one, or the first of several."""
        return self._cluster is None or self._cluster.rank == 0

    @cached_property
    def replicas(self) -> Replicas:
        """The model's replicas on the devices; the first use sets TensorFlow up."""
        from gpubalance.engine.replicas import replicas_on, take_names

        here = self.devices
        if self._cluster is not None:
            here = (self.devices[self._cluster.rank],)
        names = take_names(here)
        # It waits there for the other processes
        reports.note(awaited=self._cluster is not None)
        replicas = replicas_on(
            self.devices, names, self._joint, self._summing, self._cluster
        )
        reports.note(awaited=False)
        return replicas

    def stamp_for(self, monitor: Any) -> None:
        """Tells the monitor of the steps of its model's `fit`, until that ends.

        Raises BadInput if this split does not train it, or another monitor has these steps.
        """
        steps = self.functions_called_here(monitor.model)
        if steps is None:
            raise BadInput(
                "the monitor's split is not what trains the model",
                remedy="use one split for both: split.fit(model, …, "
                "callbacks=[split.monitor()])",
            )
        if steps.monitor not in (None, monitor):
            raise BadInput(
                "fit takes one monitor, not two",
                remedy="one monitor does everything: split.monitor(rebalance=True, "
                "noise=True, log_dir=…)",
            )
        steps.monitor = monitor


def _known_limits(shares: BatchSplit) -> tuple[int | None, ...]:
    """What a device can hold that takes its batch in parts is taken to be one part."""
    limits = []
    for batch, micro_batch in zip(shares.batches, shares.micro_batches, strict=True):
        limits.append(micro_batch if micro_batch < batch else None)
    return tuple(limits)
