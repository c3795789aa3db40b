"""The splits that `balance` has measured, in order, and whether it may measure more."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from gpubalance.planning.problem import Allocation
from gpubalance.results.plan import Round
from gpubalance.results.run import Measurement
from gpubalance.settings.record import Batch, Record
from gpubalance.settings.shares import Shares


class TriedSplit(Record):
    """What a split gave in a round. If it ran out of memory, `measured` is null.

    `limits` then has (device, its largest micro-batch) for each device that holds less than was thought.
    """

    split: Shares
    measured: Measurement | None
    limits: tuple[tuple[Annotated[int, Field(ge=0)], Batch], ...] = ()

    @model_validator(mode="after")
    def _is_of_these_devices(self) -> TriedSplit:
        replicas = self.measured.replicas if self.measured else ()
        if self.measured and [one.device for one in replicas] != list(self.split.used):
            raise ValueError("it is not of the devices that have samples")
        if not all(one.compute_s > 0 for one in replicas):
            raise ValueError("a compute time is above 0")
        if any(device >= len(self.split.batches) for device, _ in self.limits):
            raise ValueError("a limit is of one of the devices")
        return self


class Rounds:
    """At most `most` rounds. One for each device may run out of memory without counting, as it tells what fits."""

    def __init__(self, most: int, devices: int) -> None:
        self.most = most
        self._devices = devices
        self._records: list[Round] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def are_over(self) -> bool:
        """Whether no more splits may be measured."""
        failed = sum(one.measured is None for one in self._records)
        return len(self) - min(failed, self._devices) >= self.most

    @property
    def records(self) -> tuple[Round, ...]:
        """All rounds, as in the result."""
        return tuple(self._records)

    def note(self, planned: Allocation, measured: Measurement | None) -> Round:
        """Records what a split gave, None if it ran out of memory."""
        record = Round(
            number=len(self) + 1,
            batches=planned.split.batches,
            micro_batches=planned.split.micro_batches,
            predicted_throughput=planned.throughput,
            outcome="oom" if measured is None else "measured",
            measured=measured,
        )
        self._records.append(record)
        return record

    def held(self, device: int) -> list[int]:
        """The micro-batches that a device held in measured rounds."""
        return [one.micro_batches[device] for one in self._records if one.measured is not None]
