"""The splits that `balance` has measured, in order, and how often it may still."""

from __future__ import annotations

from gpubalance.planning.problem import Allocation
from gpubalance.results.plan import Round
from gpubalance.results.run import Measurement


class Rounds:
    """At most `most` measurements, besides those that ran out of memory, up to one a device: they tell what fits."""

    def __init__(self, most: int, devices: int) -> None:
        self.most = most
        self._devices = devices
        self._records: list[Round] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def are_over(self) -> bool:
        """Whether no split may be measured any more."""
        failed = sum(one.measured is None for one in self._records)
        return len(self) - min(failed, self._devices) >= self.most

    @property
    def records(self) -> tuple[Round, ...]:
        """All of them, as the result has them."""
        return tuple(self._records)

    def note(self, planned: Allocation, measured: Measurement | None) -> Round:
        """Takes down what a split gave; None where it ran out of memory."""
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
        """The micro-batches that a device has held."""
        return [one.micro_batches[device] for one in self._records if one.measured is not None]
