"""What is measured: a split, or a cut of a model over devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.workers.messages import Pipe


@dataclass(frozen=True)
class Subject:
    """A split on its devices, a replica each, or with `cut` a model cut over them, in a pipeline.

    The `name` tells subjects of one measurement apart: "" is a run's own split. With a baseline
    others are only compared. Batches come `from_input_pipeline`, the user's own, or lie on the
    devices. `group` is the number of the party's group that trains it. Windows have stamped steps
    if it `wants_stamps`, and whoever watches gets each timing if it is `shown`. A user's data of
    fewer than `least_samples` is refused.
    """

    split: BatchSplit
    devices: tuple[Device, ...] = ()
    name: str = ""
    is_baseline: bool = False
    from_input_pipeline: bool = False
    group: int = 0
    wants_stamps: bool = True
    shown: bool = True
    least_samples: int = 0
    cut: Pipe | None = None

    @property
    def is_independent(self) -> bool:
        """Whether it is a device with a model of its own."""
        return self.name in ("alone", "at once")

    @property
    def unnamed(self) -> Subject:
        """The same under no name: what a worker trains."""
        return replace(self, name="", is_baseline=False)


# Subjects that are measured at the same time, each by a worker of its own; mostly it is only one.
Turn = tuple[Subject, ...]
