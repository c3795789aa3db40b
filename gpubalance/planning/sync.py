"""A step's sync, a function of the devices in use, and the packs in which gradients are summed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field

# The part by which a sum may be timed too fast or too slow.
_UNSURE = 0.03
# What PyTorch's DistributedDataParallel takes at most, `bucket_cap_mb`.
MOST_BYTES = 25 << 20
# A smaller pack is not worth its operations in the graph.
LEAST_BYTES = 64 << 10
# Of the first pack, as DistributedDataParallel has it: so the sums begin early.
_FIRST_PART = 0.25
# What packs may leave of the time of one all-reduce of everything.
_WORTH_PACKS = 0.5
_TIMES = 4  # the sizes to try are so many times smaller and larger


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
        return self.measured.get(self.smallest_measured_superset(used), self.longest_s)

    @property
    def longest_s(self) -> float:
        """The longest that was measured."""
        return max(self.measured.values(), default=self.otherwise_s)

    def minimum(self, used: Set[int]) -> float:
        """The least sync with these devices in use: a set takes no less than any part of it.

        It is at least that of the smallest measured set around them, less what a sum over them may
        be faster than over that set, or less by as large a part: sync in packs may be longer than
        a sum. Hardly more can be gained. Nothing is gained on any measured part of them. If neither
        is known, it is 0.
        """
        min_s = _max_of_parts(self.measured, used)
        superset = self.smallest_measured_superset(used)
        if superset in self.sums_s:
            superset_s = self.measured[superset]
            superset_sum_s = (1 + _UNSURE) * self.sums_s[superset]
            sum_over_them_s = (1 - _UNSURE) * _max_of_parts(self.sums_s, used)
            left_s = superset_s - (superset_sum_s - sum_over_them_s)
            if superset_s > superset_sum_s > 0:
                left_s = superset_s * sum_over_them_s / superset_sum_s
            min_s = max(min_s, left_s)
        return min(self.of(used), min_s)

    def nothing_more_to_learn(self, used: Set[int]) -> bool:
        """Whether no sum that can be timed would tell more of these devices' least sync.

        They can be timed beside a measured set around them. One over them takes between those over
        a part of them and over that set, which may be as long.
        """
        superset = self.smallest_measured_superset(used)
        if superset not in self.sums_s:
            return not superset
        return frozenset(used) in self.sums_s or not self.may_be_faster(used)

    def may_be_faster(self, used: Set[int]) -> bool:
        """Whether a sum over these devices may be clearly faster than over the set around them."""
        over_them_s = _max_of_parts(self.sums_s, used)
        superset_s = self.sums_s.get(self.smallest_measured_superset(used), 0.0)
        return (1 + _UNSURE) * over_them_s < (1 - _UNSURE) * superset_s

    def within(self, devices: Sequence[int]) -> Syncs:
        """The syncs of these devices alone, numbered anew in this order."""
        syncs = {frozenset(range(len(devices))): self.of(set(devices))}
        for measured, seconds in self.measured.items():
            if measured <= set(devices):
                syncs[frozenset(map(devices.index, measured))] = seconds
        return Syncs(syncs)

    def smallest_measured_superset(self, used: Set[int]) -> frozenset[int]:
        """The smallest measured set that has all these devices; an empty one if there is none."""
        superset = [devices for devices in self.measured if devices >= used]
        return min(
            superset,
            key=lambda devices: (len(devices), self.measured[devices]),
            default=frozenset(),
        )


def _max_of_parts(seconds: Mapping[frozenset[int], float], used: Set[int]) -> float:
    """The longest that a set takes which is a part of these devices, or all of them."""
    parts_s = [took_s for devices, took_s in seconds.items() if devices <= used]
    return max(parts_s, default=0.0)


def best_pack_bytes(gradient_bytes: int, latency_s: float, bytes_per_s: float) -> int:
    """The size of packs with which the all-reduce ends soonest after the last gradient, or 0.

    All G/p packs of a size p cost their latency l, and only the last one has nothing to hide
    behind: it takes p/v at v bytes per second. (G/p)·l + p/v is least at p = √(G·l·v). It is
    rounded to a power of two, which costs at most 6 % of that, so that two measurements of one link
    give one size. Packs also take time from the compute that they hide behind: it is 0, for all
    gradients at once, where packs would leave more than half of what that takes, l + G/v.
    """
    best = math.sqrt(gradient_bytes * latency_s * bytes_per_s)
    possible = max(1.0, min(best, 2.0 * MOST_BYTES))
    pack_bytes = min(max(2 ** round(math.log2(possible)), LEAST_BYTES), MOST_BYTES)
    if pack_bytes >= gradient_bytes:
        return 0
    in_packs_s = gradient_bytes / pack_bytes * latency_s + pack_bytes / bytes_per_s
    at_once_s = latency_s + gradient_bytes / bytes_per_s
    return pack_bytes if in_packs_s <= _WORTH_PACKS * at_once_s else 0


def sizes_beside(pack_bytes: int, gradient_bytes: int) -> set[int]:
    """At most two other sizes to try, in bytes: packs that are four times smaller and larger.

    Packs as large as the gradients are 0, all at once. Beside 0 two smaller sizes are tried.
    """
    if pack_bytes:
        tried = [pack_bytes // _TIMES, pack_bytes * _TIMES]
    else:
        tried = [gradient_bytes // _TIMES**2, gradient_bytes // _TIMES]
    sizes = set()
    for size in tried:
        possible = min(max(size, LEAST_BYTES), MOST_BYTES)
        sizes.add(possible if possible < gradient_bytes else 0)
    return sizes - {pack_bytes}


def packs_of(
    values: Sequence[tuple[Hashable, int]], pack_bytes: int
) -> list[list[int]]:
    """The numbers of the values in each pack, in the order in which the packs are summed.

    A value is its type and its bytes. The last values come first, as the backward pass begins with
    the last layers. A pack has values of one type and ends once it has `pack_bytes`; with 0 there
    is one for each type.
    """
    packs: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}  # by type, the pack that takes more values
    room: dict[Hashable, float] = {}  # bytes until that pack ends
    for number in reversed(range(len(values))):
        kind, size = values[number]
        if room.get(kind, 0.0) <= 0:
            has_room: float = pack_bytes or math.inf
            if kind not in room:  # the first pack
                has_room *= _FIRST_PART
            room[kind] = has_room
            filling[kind] = []
            packs.append(filling[kind])
        filling[kind].append(number)
        room[kind] -= size
    return packs
