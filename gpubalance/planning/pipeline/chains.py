"""Cuts blocks in a row over unlike devices: all cuts that may be short enough, by a lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpubalance.planning.pipeline.problem import BlockLoad, CutProblem, Segment
from gpubalance.planning.pipeline.schedule import MOST_AHEAD

_Floats = NDArray[np.float64]
_Numbers = NDArray[np.intp]
# Rounding in a sum of seconds or bytes; well below measurement error.
_ROUNDING = 1e-12
_NO_LINK = -1.0


class Chain(NamedTuple):
    """Segments in the blocks' order, each on a device of its own.

    No order of their tasks takes less than `min_s`, if each segment feeds the next; where several
    have inputs or outputs of their own, one may.
    """

    segments: tuple[Segment, ...]
    min_s: float


def chains(problem: CutProblem, below_s: float, maximum: int) -> list[Chain]:
    """The chains that fit in memory and may take less than `below_s`, the least bound first.

    Blocks 0 … n−1 are cut into segments, one on each of two or more of the devices, in any order. A
    segment takes f + b = t seconds for a micro-batch's passes, and x to send its output on. From
    the first micro-batch's arrival until the last one's gradient leaves, it and those behind it
    take at least W; one micro-batch alone takes R. With R′ and W′ of those behind it:

        D = 2x + R′, R = t + D
        W = max(t + 2x + W′, K·t + waits, (m + 1)·R + r·min(f, b), t + (K + 1)·x + R′)

    It does at most a forwards ahead of a backward. So it waits max(0, D − a·f) before its first
    backward and max(0, D − a·b) before its last one, both if a ≤ K − 2; of a + 1 micro-batches the
    last can't begin before the first is back, m times, with r left over; and transfers take turns.
    A step takes at least W + the first segment's update.

    Segments are put before others, from the last one on. If there are more than `maximum` of a
    number of segments, those are kept that take the least from their first block on and with their
    devices: the best for each pair first.
    """
    blocks = len(problem.graph.blocks)
    devices = len(problem.loads)
    before = _Before(problem)
    no_time = np.zeros(1)
    tails = _Tails(
        np.array([[blocks]]), np.zeros((1, 0), np.intp), no_time, no_time, no_time
    )
    whole: list[Chain] = []
    for count in range(1, min(devices, blocks) + 1):
        by_device = [before.put(tails, device, below_s) for device in range(devices)]
        columns = zip(*by_device, strict=True)
        tails = _Tails._make(map(np.concatenate, columns)).best(maximum)
        if count > 1:
            whole += tails.chains()
    return sorted(whole, key=attrgetter("min_s"))


class _Tails(NamedTuple):
    """Segments from some block to the last, a row each.

    `min_s` bounds the whole step, with the blocks before them.
    """

    starts: _Numbers  # the last column is the number of blocks
    devices: _Numbers
    whole_s: _Floats  # W
    trip_s: _Floats  # R
    min_s: _Floats

    def rows(self, which: _Numbers) -> _Tails:
        return _Tails._make(column[which] for column in self)

    def best(self, maximum: int) -> _Tails:
        """At most so many: the best with each first block and devices, then the second best, …"""
        used = (1 << self.devices).sum(axis=1)  # a bit for each device
        begun = used * (self.starts.max(initial=0) + 1) + self.starts[:, 0]
        order = np.lexsort((self.min_s, begun))
        place = np.arange(len(order))
        is_best = np.diff(begun[order], prepend=-1) != 0
        rank = place - np.maximum.accumulate(np.where(is_best, place, 0))
        by_rank = np.lexsort((self.min_s[order], rank))
        return self.rows(order[by_rank[:maximum]])

    def chains(self) -> Iterator[Chain]:
        """Those that begin with the first block."""
        whole = self.rows(np.flatnonzero(self.starts[:, 0] == 0))
        firsts = whole.starts.tolist()  # and the number of blocks, which begins none
        lasts = (whole.starts[:, 1:] - 1).tolist()
        devices = whole.devices.tolist()
        for number, min_s in enumerate(whole.min_s.tolist()):
            segments = map(Segment, firsts[number], lasts[number], devices[number])
            yield Chain(tuple(segments), min_s)


class _Before:
    """Puts segments before tails, by what runs of blocks take, at [first, one after the last]."""

    def __init__(self, problem: CutProblem) -> None:
        self._problem = problem
        passes_s = np.array(
            [[load.forward_s, load.backward_s] for load in problem.loads]
        )
        self._passes_s = np.where(np.isfinite(passes_s), passes_s, 0.0)
        shortest_s = self._passes_s.sum(axis=1).min(axis=0)  # of each block
        self._shortest_s = _runs(shortest_s)[0]  # of the blocks before
        self._sent_s = _sent(problem)

    def put(self, tails: _Tails, device: int, below_s: float) -> _Tails:
        """The tails with a segment on this device before them.

        Only those that fit and whose step may be below `below_s`.
        """
        load = self._problem.loads[device]
        count = self._problem.micro_batches
        behind = tails.devices.shape[1]
        is_free = ~(tails.devices == device).any(axis=1)
        fits_until = self._fits(load, min(behind + 1, count))
        fits = fits_until[:, tails.starts[:, 0]].T
        which, first = np.nonzero(is_free[:, None] & fits)
        old = tails.rows(which)
        end = old.starts[:, 0]
        forward_of_each, backward_of_each = self._passes_s[device]
        forward_s = _runs(forward_of_each)[first, end]
        backward_s = _runs(backward_of_each)[first, end]
        sent_s = self._sent_s[first, end, old.starts[:, min(1, behind)]]
        whole_s, trip_s = self._times_s(old, forward_s, backward_s, sent_s)
        update_s = np.where(first == 0, _runs(load.update_s)[first, end], 0.0)
        # Blocks before take at least their shortest times, and the busiest of the free devices the
        # mean of that.
        free = len(self._problem.loads) - behind - 1
        spread_s = np.where(first > 0, np.inf, 0.0)
        if free:
            spread_s = count * self._shortest_s[first] / free
        min_s = np.maximum(whole_s + update_s, spread_s)
        grown = _Tails(
            starts=np.column_stack([first, old.starts]),
            devices=np.column_stack([np.full_like(first, device), old.devices]),
            whole_s=whole_s,
            trip_s=trip_s,
            min_s=min_s,
        )
        return grown.rows(np.flatnonzero(min_s < below_s))

    def _times_s(
        self, behind: _Tails, forward_s: _Floats, backward_s: _Floats, sent_s: _Floats
    ) -> tuple[_Floats, _Floats]:
        """W and R of tails with segments of these times before them: see `chains`."""
        count = self._problem.micro_batches
        passes_s = forward_s + backward_s
        is_linked = sent_s != _NO_LINK
        back_s = np.where(is_linked, 2 * sent_s + behind.trip_s, 0.0)
        ahead = min(MOST_AHEAD * behind.devices.shape[1], count - 1)
        first_wait_s = np.maximum(0.0, back_s - ahead * forward_s)
        last_wait_s = np.maximum(0.0, back_s - ahead * backward_s)
        waits_s = np.maximum(first_wait_s, last_wait_s)
        if ahead <= count - 2:
            waits_s = first_wait_s + last_wait_s
        turns, left = divmod(count - 1, ahead + 1)
        bounds_s = [
            np.where(is_linked, passes_s + 2 * sent_s, 0.0) + behind.whole_s,
            count * passes_s + waits_s,
            (turns + 1) * (passes_s + back_s)
            + left * np.minimum(forward_s, backward_s),
            np.where(is_linked, passes_s + (count + 1) * sent_s + behind.trip_s, 0.0),
        ]
        whole_s: _Floats = np.max(bounds_s, axis=0)
        return whole_s, passes_s + back_s

    def _fits(self, load: BlockLoad, held: int) -> NDArray[np.bool_]:
        """Whether the device holds a run of blocks with so many micro-batches in flight."""
        needs = _runs(load.fixed_bytes) + held * _runs(load.live_bytes)
        kept_off = _runs(~np.isfinite(load.forward_s))
        limit = load.memory_bytes * (1 + _ROUNDING)
        return np.triu((needs <= limit) & (kept_off == 0), 1)


def _runs(values: ArrayLike) -> _Floats:
    """The sum over blocks i … j−1, at [i, j]."""
    until = np.concatenate([[0.0], np.cumsum(values)])
    runs: _Floats = until[None, :] - until[:, None]
    return runs


def _sent(problem: CutProblem) -> _Floats:
    """Seconds to send what blocks j … k−1 take from i … j−1, at [i, j, k], or `_NO_LINK`."""
    n = len(problem.graph.blocks)
    taken = np.full((n + 1, n + 1, n + 1), _NO_LINK)
    for edge in problem.graph.edges:
        for cut in range(edge.source + 1, edge.targets[-1] + 1):
            target = next(block for block in edge.targets if block >= cut)
            crossing = taken[: edge.source + 1, cut, target + 1 :]
            crossing[:] = np.maximum(crossing, 0.0) + edge.bytes_per_sample
    latency_s = problem.transfer_s(0)
    a_byte_s = problem.transfer_s(1) - latency_s
    return np.where(taken == _NO_LINK, _NO_LINK, latency_s + a_byte_s * taken)
