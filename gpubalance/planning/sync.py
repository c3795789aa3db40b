"""A step's sync by the set of devices in use, and the packs in which gradients are summed.

Sync is the part of the all-reduce that is not hidden behind compute, in seconds a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

# A timed sum may be off by this fraction.
_TIMING_ERROR = 0.03
# The usual bucket of PyTorch's DistributedDataParallel, `bucket_cap_mb`.
MAX_PACK_BYTES = 25 << 20
# A smaller pack is not worth its operations in the graph.
MIN_PACK_BYTES = 64 << 10
# The first pack is this fraction of the others, so that summing begins early.
# (DistributedDataParallel has a smaller first bucket, too: 1 MiB.)
_FIRST_PACK = 0.25
# Packs are used only if their exposed time is at most this fraction of one all-reduce's.
_MAX_EXPOSED = 0.5
_RATIO = 4  # between a size of packs and the ones that are tried beside it
# The backward pass is this fraction of compute: it multiplies twice where the forward pass
# multiplies once. Packs are summed meanwhile.
_BACKWARD = 2 / 3


@dataclass(frozen=True)
class SyncCurve:
    """A set's seconds of sync by its busy time: the longest compute plus update of its devices.

    Points are (busy, sync), by busy time; sync is linear between two points, and that of the
    nearest point beyond them.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def through(cls, measured: Iterable[tuple[float, float]]) -> SyncCurve:
        """The curve of measured points, one at least.

        A longer backward pass hides more, until only the last pack is left. So from (b₁, s₁) to
        (b₂, s₂) with s₁ > s₂ sync is max(s₂, s₁ - ⅔·(b - b₁)), and never above the straight line.
        (100, 40) and (400, 10) ms give 20 ms at 130 ms and 10 ms from 145 ms on.

        No step is planned to take longer than one with a longer busy time: if one was measured so,
        it counts with the shorter step time.
        """
        points: list[tuple[float, float]] = []
        shortest_s = math.inf
        for busy_s, sync_s in sorted(measured, key=lambda point: (-point[0], point[1])):
            shortest_s = min(shortest_s, busy_s + sync_s)
            points.insert(0, (busy_s, shortest_s - busy_s))
        knees = []
        for (busy_s, sync_s), (later_s, less_s) in pairwise(points):
            knee_s = busy_s + (sync_s - less_s) / _BACKWARD
            if busy_s < knee_s < later_s:
                knees.append((knee_s, less_s))
        return cls(tuple(sorted(points + knees)))

    def at(self, busy_s: Any) -> Any:
        """The sync at a busy time, or at each one of an array."""
        known_s, syncs_s = zip(*self.points, strict=True)
        return np.interp(busy_s, known_s, syncs_s)


@dataclass(frozen=True)
class Syncs:
    """Seconds of sync by the set of devices in use; devices are the numbers of a problem's loads.

    A set in `measured` takes what was measured. Any other set is planned with the sync of its
    smallest measured superset, which is the most that it may take. Without such a superset it is
    planned with the longest measured sync, or with `otherwise_s` if nothing was measured.

    `sums_s` has, for some sets, the seconds of a sum of all gradients over the set. Sums are timed
    alone, with no compute running.

    `curves` has the measured sets whose sync is known at several busy times. Sets are compared
    by the sync in `measured`, splits take that of the curve.
    """

    measured: Mapping[frozenset[int], float] = field(default_factory=dict)
    otherwise_s: float = 0.0
    sums_s: Mapping[frozenset[int], float] = field(default_factory=dict)
    curves: Mapping[frozenset[int], SyncCurve] = field(default_factory=dict)

    def of(self, used: Set[int]) -> float:
        """The sync that a split over these devices is planned with; 0 for one device alone."""
        if len(used) < 2:
            return 0.0
        superset = self.smallest_measured_superset(used)  # itself if measured
        return self.measured.get(superset, self.longest_s)

    def curve(self, used: Set[int]) -> SyncCurve:
        """The same by the busy time; `of` at each, if only one was measured."""
        superset = self.smallest_measured_superset(used)
        if len(used) > 1 and superset in self.curves:
            return self.curves[superset]
        return SyncCurve(((0.0, self.of(used)),))

    @property
    def longest_s(self) -> float:
        """The longest measured sync."""
        return max(self.measured.values(), default=self.otherwise_s)

    def minimum(self, used: Set[int]) -> float:
        """The least sync that these devices may have, by what is known; 0 if nothing is.

        Let s be the sync of their smallest measured superset, S the sum over it, and S' the longest
        timed sum over these devices or a subset. With the error of a timing, S counts as 1.03·S and
        S' as 0.97·S'. Fewer devices save at most what their sum is faster:
        1. s ≤ 1.03·S: they save at most 1.03·S - 0.97·S' seconds.
        2. s > 1.03·S, because packs may take longer than one sum: they save at most the same
           fraction of s, which leaves s·0.97·S' / (1.03·S).

        Sums over the devices 0, 1, 2 and over 0, 1 took S = 10 ms and S' = 4 ms. If s is 8 ms, 0
        and 1 have at least 8 - (10.3 - 3.88) = 1.6 ms of sync; if s is 20 ms, 20·3.88/10.3 = 7.5.

        No set has less sync than a measured subset of it. None has more than `of` gives.
        """
        min_s = _max_of_subsets(self.measured, used)
        superset = self.smallest_measured_superset(used)
        if superset in self.sums_s:
            superset_s = self.measured[superset]
            superset_sum_s = (1 + _TIMING_ERROR) * self.sums_s[superset]
            sum_s = (1 - _TIMING_ERROR) * _max_of_subsets(self.sums_s, used)
            if superset_s > superset_sum_s > 0:
                left_s = superset_s * sum_s / superset_sum_s
            else:
                left_s = superset_s - (superset_sum_s - sum_s)
            min_s = max(min_s, left_s)
        return min(self.of(used), min_s)

    def optimistic(self, used: Set[int]) -> float:
        """`minimum` if a measured set contains these devices, else `of`."""
        if self.smallest_measured_superset(used):
            return self.minimum(used)
        return self.of(used)

    def nothing_more_to_learn(self, used: Set[int]) -> bool:
        """Whether timing sums would teach nothing more about these devices' least sync.

        Sums can be timed only on devices inside a measured set. The sum over these devices takes at
        least as long as over any timed subset, and at most as long as over the superset: if these
        two agree, it is known.
        """
        superset = self.smallest_measured_superset(used)
        if not superset:
            return True
        if superset not in self.sums_s:
            return False
        return frozenset(used) in self.sums_s or not self.may_be_faster(used)

    def may_be_faster(self, used: Set[int]) -> bool:
        """Whether a sum over these devices may be clearly faster than over their superset."""
        least_sum_s = _max_of_subsets(self.sums_s, used)
        superset_sum_s = self.sums_s.get(self.smallest_measured_superset(used), 0.0)
        return (1 + _TIMING_ERROR) * least_sum_s < (1 - _TIMING_ERROR) * superset_sum_s

    def restricted_to(self, devices: Sequence[int]) -> Syncs:
        """The syncs of these devices' subsets; `devices[n]` gets the number n.

        The set of all of them counts as measured, so `otherwise_s` is not needed. `sums_s` is left
        out: who compares such splits times no sums.
        """
        used = set(devices)
        syncs = {frozenset(range(len(devices))): self.of(used)}
        curves = {frozenset(range(len(devices))): self.curve(used)}
        for measured, seconds in self.measured.items():
            if measured <= used:
                renumbered = frozenset(map(devices.index, measured))
                syncs[renumbered] = seconds
                curves[renumbered] = self.curve(measured)
        return Syncs(syncs, curves=curves)

    def smallest_measured_superset(self, used: Set[int]) -> frozenset[int]:
        """The smallest measured set with all these devices, itself if measured; empty for none.

        Of equally many devices it is the set with the least sync.
        """
        supersets = [devices for devices in self.measured if devices >= used]
        return min(
            supersets,
            key=lambda devices: (len(devices), self.measured[devices]),
            default=frozenset(),
        )


def _max_of_subsets(seconds: Mapping[frozenset[int], float], used: Set[int]) -> float:
    """The longest time of these devices or of a subset; 0 if none has a time."""
    of_subsets_s = [took_s for devices, took_s in seconds.items() if devices <= used]
    return max(of_subsets_s, default=0.0)


def best_pack_bytes(gradient_bytes: int, latency_s: float, bytes_per_s: float) -> int:
    """The size of packs with which the all-reduce ends soonest after the last gradient, or 0.

    G bytes of gradients make G/p packs of p bytes. Each costs the latency l, and only the last is
    exposed: it takes p/v at v bytes per second. (G/p)·l + p/v is least at p = √(G·l·v). That is
    rounded to a power of two, so that two measurements of one link give one size, which costs at
    most 6 %. At most it is MAX_PACK_BYTES, which is no power of two.

    Returns 0 (one all-reduce) if packs would leave exposed more than half of its l + G/v, because
    packing slows the compute that hides it.
    """
    ideal = math.sqrt(gradient_bytes * latency_s * bytes_per_s)
    possible = max(MIN_PACK_BYTES, min(ideal, MAX_PACK_BYTES))
    pack_bytes = min(2 ** round(math.log2(possible)), MAX_PACK_BYTES)
    if pack_bytes >= gradient_bytes:
        return 0
    in_packs_s = gradient_bytes / pack_bytes * latency_s + pack_bytes / bytes_per_s
    at_once_s = latency_s + gradient_bytes / bytes_per_s
    return pack_bytes if in_packs_s <= _MAX_EXPOSED * at_once_s else 0


def sizes_beside(pack_bytes: int, gradient_bytes: int) -> set[int]:
    """At most two other sizes of packs to try, in bytes: four times smaller and four times larger.

    0 means one pack of everything: a size that is not below `gradient_bytes` becomes 0. Beside 0, a
    sixteenth and a quarter of the gradients are tried.
    """
    if pack_bytes:
        tried = [pack_bytes // _RATIO, pack_bytes * _RATIO]
    else:
        tried = [gradient_bytes // _RATIO**2, gradient_bytes // _RATIO]
    sizes = set()
    for size in tried:
        possible = min(max(size, MIN_PACK_BYTES), MAX_PACK_BYTES)
        sizes.add(possible if possible < gradient_bytes else 0)
    return sizes - {pack_bytes}


def packs_of(
    values: Sequence[tuple[Hashable, int]], pack_bytes: int
) -> list[list[int]]:
    """The indices of the values in each pack, in the order in which the packs are summed.

    A value is (what it must have in common with the others of its pack: its dtype; its bytes). The
    last values come first, because the backward pass begins with the last layers. A pack is closed
    once it has `pack_bytes`; with 0 there is one pack for each dtype.
    """
    packs: list[list[int]] = []
    open_packs: dict[Hashable, list[int]] = {}
    bytes_left: dict[Hashable, float] = {}  # until the open pack is closed
    for index in reversed(range(len(values))):
        kind, size = values[index]
        is_first = kind not in open_packs
        if is_first or bytes_left[kind] <= 0:
            capacity: float = pack_bytes or math.inf
            if is_first:
                capacity *= _FIRST_PACK
            bytes_left[kind] = capacity
            open_packs[kind] = []
            packs.append(open_packs[kind])
        open_packs[kind].append(index)
        bytes_left[kind] -= size
    return packs
