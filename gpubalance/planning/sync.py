"""A step's sync: a function of the set of devices in use, measured for a set or bounded by what
was.
"""

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
        """The measured sync with these devices in use, else the most that it takes; 0 for one
        alone.
        """
        if len(used) < 2:
            return 0.0
        return self.measured.get(self.around(used), self.longest_s)

    @property
    def longest_s(self) -> float:
        """The longest that was measured."""
        return max(self.measured.values(), default=self.otherwise_s)

    def least(self, used: Set[int]) -> float:
        """The sync with these devices in use, else the least that it takes if a step waits for its
        slowest device.

        Some of a measured set are clearly faster, as they took less in another one. So its sync is
        that of the rest, and every set that has all of the rest takes as long, or less in
        proportion if it has fewer devices: of n devices, a ring takes n − 1 times its latency.
        """
        known = [
            self._of_as_many(some, len(used)) for some in self.measured if self._slow(some) <= used
        ]
        return min(self.of(used), max(known, default=0.0))

    def within(self, devices: Sequence[int]) -> Syncs:
        """The syncs of these devices alone, numbered anew in this order."""
        number = {device: new for new, device in enumerate(devices)}
        inside = {some: seconds for some, seconds in self.measured.items() if some <= number.keys()}
        renumbered = {
            frozenset(number[device] for device in some): seconds
            for some, seconds in inside.items()
        }
        return Syncs({frozenset(number.values()): self.of(number.keys()), **renumbered})

    def around(self, used: Set[int]) -> frozenset[int]:
        """The smallest measured set that has all these devices; an empty one if there is none."""
        around = [some for some in self.measured if some >= used]
        return min(around, key=lambda some: (len(some), self.measured[some]), default=frozenset())

    def _slow(self, some: frozenset[int]) -> set[int]:
        """The devices of a measured set that may be what it waits for."""
        faster = set[int]()
        for other, seconds in self.measured.items():
            if seconds < _CLEARLY_LESS * self._of_as_many(some, len(other)):
                faster |= other
        return {*some} - faster

    def _of_as_many(self, some: frozenset[int], devices: int) -> float:
        """The least that a measured set would take with so many devices, if those that it waits for
        were among them.
        """
        return self.measured[some] * min(1.0, (devices - 1) / (len(some) - 1))
