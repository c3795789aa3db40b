"""A step's sync: a function of the devices in use, measured or bounded by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

# The part by which a sum may be timed too fast or too slow.
_UNSURE = 0.03


@dataclass(frozen=True)
class Syncs:
    """Seconds of sync by the set of devices in use; devices are the numbers of a problem's loads.

    A `measured` set takes what was measured. Any other takes at most what its smallest measured
    superset does; without one it is taken for the longest that was measured, or `otherwise_s` if
    nothing was.

    `sums_s` is what a sum of all gradients took over some sets, with nothing to hide it behind.
    """

    measured: Mapping[frozenset[int], float] = field(default_factory=dict)
    otherwise_s: float = 0.0
    sums_s: Mapping[frozenset[int], float] = field(default_factory=dict)

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
        """The least sync with these devices in use: a set takes no less than any part of it.

        It is at least that of the smallest measured set around them, less what a sum over them may
        be faster than over that set, or less by as large a part: sync in packs may be longer than
        a sum. Hardly more can be gained. Nothing is gained on any measured part of them. If neither
        is known, it is 0.
        """
        least_s = _most_of_parts(self.measured, used)
        around = self.around(used)
        if around in self.sums_s:
            around_s = self.measured[around]
            sum_around_s = (1 + _UNSURE) * self.sums_s[around]
            sum_over_them_s = (1 - _UNSURE) * _most_of_parts(self.sums_s, used)
            left_s = around_s - (sum_around_s - sum_over_them_s)
            if around_s > sum_around_s > 0:
                left_s = around_s * sum_over_them_s / sum_around_s
            least_s = max(least_s, left_s)
        return min(self.of(used), least_s)

    def has_sums(self, used: Set[int]) -> bool:
        """Whether no sum that can be timed would tell more of these devices' least sync.

        They can be timed beside a measured set around them. One over them takes between those over
        a part of them and over that set, which may be as long.
        """
        around = self.around(used)
        if around not in self.sums_s:
            return not around
        return frozenset(used) in self.sums_s or not self.may_be_faster(used)

    def may_be_faster(self, used: Set[int]) -> bool:
        """Whether a sum over these devices may be clearly faster than over the set around them."""
        over_them_s = _most_of_parts(self.sums_s, used)
        around_s = self.sums_s.get(self.around(used), 0.0)
        return (1 + _UNSURE) * over_them_s < (1 - _UNSURE) * around_s

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


def _most_of_parts(seconds: Mapping[frozenset[int], float], used: Set[int]) -> float:
    """The longest that a set takes which is a part of these devices, or all of them."""
    parts_s = [took_s for devices, took_s in seconds.items() if devices <= used]
    return max(parts_s, default=0.0)
