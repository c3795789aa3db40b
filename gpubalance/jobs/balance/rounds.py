"""The splits that `balance` has tried, and which of them is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.planning.problem import Allocation
from gpubalance.results.plan import Round
from gpubalance.results.run import Measurement
from gpubalance.settings.shares import Shares

# Splits nearer than that are equally fast, as far as a round can tell.
EQUAL_WITHIN = 0.005


@dataclass(frozen=True)
class Tried:
    """A split as it was planned, and what it gave."""

    planned: Allocation
    record: Round

    @property
    def rate(self) -> float | None:
        """Samples per second; None where it ran out of memory."""
        return None if self.record.measured is None else self.record.measured.throughput.median


class Rounds:
    """At most `most` splits, not counting those that ran out of memory, up to one a device: they tell what fits."""

    def __init__(self, most: int, devices: int) -> None:
        self.most = most
        self._devices = devices
        self._tried: list[Tried] = []
        self._since = 0

    def __len__(self) -> int:
        return len(self._tried)

    @property
    def are_over(self) -> bool:
        """Whether no other split may be tried."""
        failed = sum(one.rate is None for one in self._tried)
        return len(self._tried) - min(failed, self._devices) >= self.most

    @property
    def records(self) -> tuple[Round, ...]:
        """All of them, as the result has them."""
        return tuple(one.record for one in self._tried)

    def note(self, planned: Allocation, measured: Measurement | None) -> Round:
        """Takes down what a split gave; None where it ran out of memory."""
        record = Round(
            number=len(self._tried) + 1,
            batches=planned.split.batches,
            micro_batches=planned.split.micro_batches,
            predicted_throughput=planned.throughput,
            outcome="oom" if measured is None else "measured",
            measured=measured,
        )
        self._tried.append(Tried(planned, record))
        return record

    def devices_changed(self) -> None:
        """From here on the devices have another speed: what they gave before says nothing of now."""
        self._since = len(self._tried)

    def has(self, split: Shares) -> bool:
        """Whether that split was tried at the devices' present speed."""
        return any(one.planned.split == split for one in self._tried[self._since :])

    def held(self, device: int) -> list[int]:
        """The micro-batches that a device has held."""
        return [one.planned.split.micro_batches[device] for one in self._tried if one.rate is not None]

    def best(self, limits: Sequence[int]) -> Allocation | None:
        """Of the splits that fit, at the devices' present speed, the fastest; the last one of equal ones.

        One that was larger than the limits that are known now does not fit: it has run out of memory since.
        """
        fitting = [
            one
            for one in self._tried
            if one.rate is not None
            and all(m <= most for m, most in zip(one.planned.split.micro_batches, limits, strict=True))
        ]
        now = [one for one in fitting if one.record.number > self._since] or fitting[-1:]
        best = max((one.rate or 0.0 for one in now), default=0.0)
        return next((one.planned for one in reversed(now) if (one.rate or 0.0) * (1 + EQUAL_WITHIN) >= best), None)
