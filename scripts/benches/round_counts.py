"""How many rounds balances spent, by what they are for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from gpubalance.results.plan import Round


class RoundCounts(NamedTuple):
    """How many rounds a balance spent, also those of them that measure a split once more.

    Those with other devices than the first round's learn whether these need less sync.
    """

    every: int
    once_more: int
    other_devices: int


def counts_of(rounds: Sequence[Round]) -> RoundCounts:
    """The rounds by what they are for; a device alone needs no sync."""
    first = rounds[0].split.used
    measured = set()
    once_more = 0
    other_devices = 0
    for tried in rounds:
        used = tried.split.used
        if tried.split in measured:
            once_more += 1
        elif len(used) > 1 and used != first:
            other_devices += 1
        if tried.measured is not None:
            measured.add(tried.split)
    return RoundCounts(len(rounds), once_more, other_devices)


def told_rounds(counts: Sequence[RoundCounts]) -> str:
    """How many there were on average, and how many of them had a purpose of their own."""
    every, once_more, other_devices = zip(*counts, strict=True)
    return (
        f"{statistics.mean(every):.2f} rounds, at most {max(every)}, of which "
        f"{statistics.mean(once_more):.2f} once more, {statistics.mean(other_devices):.2f} "
        "with other devices"
    )
