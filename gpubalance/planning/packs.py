"""Packs: gradients summed in one all-reduce, so that the first sums hide behind compute."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

# What PyTorch's DistributedDataParallel takes at most, `bucket_cap_mb`.
MOST_BYTES = 25 << 20
# A smaller pack is not worth its operations in the graph.
LEAST_BYTES = 64 << 10
# Of the first pack, as DistributedDataParallel has it: so the sums begin early.
_FIRST_PART = 0.25
# What packs may leave of the time of one all-reduce of everything.
_WORTH_PACKS = 0.5
_TIMES = 4  # the sizes to try are so many times smaller and larger


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
