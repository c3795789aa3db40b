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
# Packs are used only if their exposed time is at most this fraction of one all-reduce's time.
_MAX_EXPOSED = 0.5
_RATIO = 4  # between the size of packs in use and the sizes that are tried beside it
# The backward pass is this fraction of compute: it multiplies twice where the forward pass
# multiplies once. Packs are summed during the backward pass.
_BACKWARD = 2 / 3


@dataclass(frozen=True)
class SyncCurve:
    """The sync of a set of devices over its busy time, the longest compute plus update of a device.

    Points are (busy time, sync) in seconds, sorted. Sync is linear between two points. Before the
    first point sync is that of the first point, after the last point that of the last.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def through(cls, measured: Iterable[tuple[float, float]]) -> SyncCurve:
        """The curve of measured points, one at least.

        A longer backward pass hides more sync: ⅔ s per second of busy time. So from one point sync
        falls at this rate until it is as short as at the next point, where only the last pack is
        exposed. Then it stays. From (100, 40) to (400, 10) ms it must fall by 30 ms, which takes 45
        ms of busy time: sync is 20 ms at 130 ms, and 10 ms from 145 ms on. Between two points the
        curve is a straight line if sync rises, or falls by more than ⅔ s per second: (100, 40) and
        (120, 24) ms give 32 ms at 110 ms.

        The step time, busy + sync, never falls as busy rises. A point with a longer step time than
        a later point is lowered: (100, 40) and (110, 20) ms become (100, 30) and (110, 20) ms.
        """
        points: list[tuple[float, float]] = []
        min_step_s = math.inf  # the least step time of the points so far
        # From the longest busy time down; of equal busy times the least sync comes first.
        for busy_s, sync_s in sorted(measured, key=lambda point: (-point[0], point[1])):
            min_step_s = min(min_step_s, busy_s + sync_s)
            points.insert(0, (busy_s, min_step_s - busy_s))
        knees = []
        for (busy_s, sync_s), (next_busy_s, next_sync_s) in pairwise(points):
            # Falling by ⅔ s per second, sync reaches the next point's at this busy time.
            flat_from_s = busy_s + (sync_s - next_sync_s) / _BACKWARD
            if busy_s < flat_from_s < next_busy_s:
                knees.append((flat_from_s, next_sync_s))
        return cls(tuple(sorted(points + knees)))

    def at(self, busy_s: Any) -> Any:
        """The seconds of sync at a busy time, or at each busy time of an array."""
        known_busy_s, syncs_s = zip(*self.points, strict=True)
        return np.interp(busy_s, known_busy_s, syncs_s)


@dataclass(frozen=True)
class Syncs:
    """Seconds of sync by the set of devices in use; devices are the numbers of a problem's loads.

    A set in `measured` has its measured sync. Any other set is planned with the sync of its
    smallest measured superset, because fewer devices need no more. Without such a superset the set
    is planned with the longest measured sync, or with `otherwise_s` if nothing was measured.

    `sums_s` has, for some sets, the seconds of a sum of all gradients over the set. Sums are timed
    alone, with no compute running.

    `curves` has the measured sets whose sync is known at several busy times. Sets are compared by
    the sync in `measured`; a split is planned with its set's curve, if there is one.
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
        """The curve of the smallest measured superset; without a curve the constant `of(used)`."""
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

        Example: the sum over devices 0, 1 and 2 took S = 10 ms, the sum over 0 and 1 S' = 4 ms. A
        timing may be off by 3 %, so S is at most 10.3 ms and S' at least 3.88 ms: without device 2
        the sum is faster by at most 6.42 ms. Devices 0, 1 and 2 have a sync of s.
        - Sync gets shorter by at most as many seconds as the sum. With s = 8 ms, devices 0 and 1
          have a sync of at least 8 - 6.42 = 1.58 ms.
        - A step sums in packs, each with a latency of its own. So s may be longer than S, which is
          the time of one sum. Then sync gets shorter by at most the same fraction as the sum. With
          s = 20 ms the least is 20 · 3.88/10.3 = 7.53 ms.

            s ≤ 1.03·S    s - (1.03·S - 0.97·S')
            s > 1.03·S    s · 0.97·S' / (1.03·S)

        In general s is the sync of the smallest measured superset, S the sum over that superset,
        and S' the longest timed sum over these devices or a subset. No set has less sync than a
        measured subset, and none has more than `of` gives.
        """
        min_s = _max_of_subsets(self.measured, used)
        superset = self.smallest_measured_superset(used)
        if superset in self.sums_s:
            superset_s = self.measured[superset]
            max_superset_sum_s = (1 + _TIMING_ERROR) * self.sums_s[superset]
            min_sum_s = (1 - _TIMING_ERROR) * _max_of_subsets(self.sums_s, used)
            if superset_s > max_superset_sum_s > 0:
                by_sums_s = superset_s * min_sum_s / max_superset_sum_s
            else:
                by_sums_s = superset_s - (max_superset_sum_s - min_sum_s)
            min_s = max(min_s, by_sums_s)
        return min(self.of(used), min_s)

    def optimistic(self, used: Set[int]) -> float:
        """`minimum` if a measured set contains these devices, else `of`.

        Without a measured superset nothing says that their sync may be shorter.
        """
        if self.smallest_measured_superset(used):
            return self.minimum(used)
        return self.of(used)

    def sums_can_show_more(self, used: Set[int]) -> bool:
        """Whether timing sums over these devices and their superset can still raise `minimum`."""
        superset = self.smallest_measured_superset(used)
        if not superset:
            return False  # sums are timed only on devices inside a measured set
        if superset not in self.sums_s:
            return True
        is_timed = frozenset(used) in self.sums_s
        # If a timed subset's sum takes as long as the superset's, so does this set's: no gain.
        return not is_timed and self.sum_may_be_faster(used)

    def sum_may_be_faster(self, used: Set[int]) -> bool:
        """Whether a sum over these devices may be clearly faster than over their superset."""
        min_sum_s = _max_of_subsets(self.sums_s, used)
        superset_sum_s = self.sums_s.get(self.smallest_measured_superset(used), 0.0)
        return (1 + _TIMING_ERROR) * min_sum_s < (1 - _TIMING_ERROR) * superset_sum_s

    def restricted_to(self, devices: Sequence[int]) -> Syncs:
        """The syncs of these devices and their subsets; `devices[n]` gets the number n.

        All these devices together count as measured, so `otherwise_s` is not needed. `sums_s` is
        left out: the caller, jobs/plan/splits.py, times no sums.
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
        """The smallest measured set that has all these devices; empty if there is none.

        If the set of these devices was measured, it is that set. Of equally small sets the one with
        the least sync counts.
        """
        supersets = [devices for devices in self.measured if devices >= used]
        return min(
            supersets,
            key=lambda devices: (len(devices), self.measured[devices]),
            default=frozenset(),
        )


def _max_of_subsets(seconds: Mapping[frozenset[int], float], used: Set[int]) -> float:
    """The longest time in `seconds` of these devices or a subset of them; 0 if there is none."""
    of_subsets_s = [took_s for devices, took_s in seconds.items() if devices <= used]
    return max(of_subsets_s, default=0.0)


def best_pack_bytes(gradient_bytes: int, latency_s: float, bytes_per_s: float) -> int:
    """The bytes of a pack with which the all-reduce ends soonest after the last gradient, or 0.

    G bytes of gradients make G/p packs of p bytes. The bytes of all packs but the last hide behind
    compute; those of the last take p/v seconds at v bytes per second. The latency l of each pack
    counts as exposed, because starting a sum takes time from compute. The exposed time, (G/p)·l +
    p/v, is least at p = √(G·l·v). p is rounded to a power of two, so that two measurements of one
    link give the same size: that costs at most 6.1 %. p is at most MAX_PACK_BYTES, which is no
    power of two.

    One all-reduce of everything takes l + G/v. Returns 0 to choose it if packs would leave more
    than half of that time exposed: they would slow compute and hide little.
    """
    ideal = math.sqrt(gradient_bytes * latency_s * bytes_per_s)
    possible = max(MIN_PACK_BYTES, min(ideal, MAX_PACK_BYTES))
    pack_bytes = min(2 ** round(math.log2(possible)), MAX_PACK_BYTES)
    if pack_bytes >= gradient_bytes:
        return 0
    exposed_s = gradient_bytes / pack_bytes * latency_s + pack_bytes / bytes_per_s
    at_once_s = latency_s + gradient_bytes / bytes_per_s
    return pack_bytes if exposed_s <= _MAX_EXPOSED * at_once_s else 0


def sizes_beside(pack_bytes: int, gradient_bytes: int) -> set[int]:
    """At most two other sizes of packs to try, in bytes: four times smaller and four times larger.

    0 is one pack of everything. A size of `gradient_bytes` or more becomes 0. Beside a `pack_bytes`
    of 0, a sixteenth and a quarter of the gradients are tried.
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

    A value is (kind, bytes). Only values of one kind share a pack. The caller, engine/step/sums.py,
    gives a dtype as the kind. The kind of a value that must be a pack of its own is its place among
    the values, which no other value has. The last values come first, because the backward pass
    begins with the last layers. A pack is closed once it has `pack_bytes`, the first pack of a kind
    once it has a quarter of that. With a `pack_bytes` of 0 there is one pack for each kind.
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
