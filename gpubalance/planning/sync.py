"""A step's sync: a function of the devices in use, measured or bounded by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

# Less than this part of what is expected is clearly less.
_CLEARLY_LESS = 0.9


@dataclass(frozen=True)
class Syncs:
    """Seconds of sync by the set of devices in use; devices are the numbers of a problem's loads.

    A `measured` set takes what was measured. Any other takes at most what its smallest measured
    superset does; without one it is taken for the longest that was measured, or `otherwise_s` if
    nothing was.
    """

    measured: Mapping[frozenset[int], float] = field(default_factory=dict)
    otherwise_s: float = 0.0

    def of(self, used: Set[int]) -> float:
        """The measured sync with these devices in use, else the most it takes; 0 for one alone."""
        if len(used) < 2:
            return 0.0
        return self.measured.get(self.around(used), self.longest_s)

    @property
    def longest_s(self) -> float:
        """The longest that was measured."""
        return max(self.measured.values(), default=self.otherwise_s)

    def least(self, used: Set[int]) -> float:
        """The least sync with these devices in use, if a step waits for its slowest device.

        Some of a measured set are clearly faster, as they took less in another one. So its sync is
        that of the rest, and every set that has all of the rest takes as long, or less in
        proportion if it has fewer devices: of n devices, a ring takes n − 1 times its latency.
        """
        least_s = 0.0
        for devices in self.measured:
            if self._slow(devices) <= used:
                least_s = max(least_s, self._of_as_many(devices, len(used)))
        return min(self.of(used), least_s)

    def within(self, devices: Sequence[int]) -> Syncs:
        """The syncs of these devices alone, numbered anew in this order."""
        syncs = {frozenset(range(len(devices))): self.of(set(devices))}
        for measured, seconds in self.measured.items():
            if measured <= set(devices):
                syncs[frozenset(map(devices.index, measured))] = seconds
        return Syncs(syncs)

    def around(self, used: Set[int]) -> frozenset[int]:
        """The smallest measured set that has all these devices; an empty one if there is none."""
        around = [devices for devices in self.measured if devices >= used]
        return min(
            around,
            key=lambda devices: (len(devices), self.measured[devices]),
            default=frozenset(),
        )

    def _slow(self, devices: frozenset[int]) -> Set[int]:
        """The devices of a measured set that may be what it waits for."""
        slow = devices
        for other, seconds in self.measured.items():
            if seconds < _CLEARLY_LESS * self._of_as_many(devices, len(other)):
                slow -= other
        return slow

    def _of_as_many(self, measured: frozenset[int], count: int) -> float:
        """The least that a measured set would take with `count` devices, the slowest among them."""
        others_part = (count - 1) / (len(measured) - 1)
        return self.measured[measured] * min(1.0, others_part)
