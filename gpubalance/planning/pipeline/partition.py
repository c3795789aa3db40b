"""Cuts a chain of blocks over unlike devices: exact, by dynamic programming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpubalance.planning.pipeline.problem import Load, Problem
from gpubalance.planning.pipeline.segments import Segment

Floats = NDArray[np.float64]
# Rounding in a sum of seconds or bytes; well below measurement error.
_ROUNDING = 1e-12
# A chain is simulated if its step is at most this many times the shortest: the objective is a few percent off.
_NOT_MUCH = 1.25
_WHICH = -1  # stands for a device: which of them has the first segment


@dataclass(frozen=True)
class Chain:
    """Segments in the blocks' order, each on a device of its own. `step_time_s` is the objective's value."""

    segments: tuple[Segment, ...]
    step_time_s: float


def chains(problem: Problem) -> Iterator[Chain]:
    """The best chain, and for each number of devices those that are not much worse; none if none fits.

    Problem: blocks 0 … n−1 are cut into segments, one on each of any of the devices, in any order. A segment takes tᵢ =
    forward + backward seconds of a micro-batch, its inputs xᵢ = Σ (latency + bytes / rate) in each direction; its
    memory Σ fixed + h · Σ live, with h micro-batches in flight at its place, may not exceed the device's. Minimise Σ
    (tᵢ + 2xᵢ) + (K − 1) · max (tᵢ, xᵢ) + u₀: the first micro-batch passes through all, then each takes as long as the
    slowest part, transfers running beside compute; u₀ is the first segment's update, as that device finishes last.

    Method: g(i, devices) is the least sum for blocks i … on exactly these devices with no part above θ. θ starts at ∞
    and falls below the largest part of the chain just found, until there is none: so no pair of (sum, largest) that is
    best for some K is missed. As no sum is below the first one, largest parts that would make a chain `_NOT_MUCH` worse
    than the best are skipped. O(2^D · D · n²) for each θ.
    """
    table, more = _Table(problem), problem.micro_batches - 1
    best_s = np.inf
    for count in range(min(len(problem.loads), len(problem.graph.blocks)), problem.least_devices - 1, -1):
        bound, least_s = np.inf, None
        while (found := table.least(count, bound)) is not None:
            segments, total_s, largest_s = found
            yield Chain(segments, total_s + more * largest_s)
            best_s = min(best_s, total_s + more * largest_s)
            least_s = total_s if least_s is None else least_s
            bound = min(largest_s, (_NOT_MUCH * best_s - least_s) / more) if more else largest_s


class _Table:
    """What each run of blocks costs on each device, indexed by its first block and the one after its last."""

    def __init__(self, problem: Problem) -> None:
        self._devices = range(len(problem.loads))
        self._n = len(problem.graph.blocks)
        allowed = np.isin(np.arange(self._n + 1), [0, self._n, *problem.graph.cuts])
        self._is_run = np.triu(np.outer(allowed, allowed), 1)
        transfer_s = _transfers(problem)
        compute_s = [_runs(np.where(np.isfinite(own_s), own_s, 0.0)) for own_s in map(_passes_s, problem.loads)]
        self._part_s = [np.maximum(own_s, transfer_s) for own_s in compute_s]
        self._sum_s = [own_s + 2 * transfer_s for own_s in compute_s]
        for own_s, load in zip(self._sum_s, problem.loads, strict=True):
            own_s[0] += _runs(np.array(load.update_s))[0]
        self._fits = [[self._is_run & self._fit(problem, d, behind) for behind in self._devices] for d in self._devices]

    def _fit(self, problem: Problem, device: int, behind: int) -> NDArray[np.bool_]:
        load = problem.loads[device]
        needs = _runs(np.array(load.fixed_bytes)) + problem.held(behind) * _runs(np.array(load.live_bytes))
        kept_off = _runs(~np.isfinite(_passes_s(load)))
        limit = np.inf if load.memory_bytes is None else load.memory_bytes * (1 + _ROUNDING)
        fits: NDArray[np.bool_] = (needs <= limit) & (kept_off == 0)
        return fits

    def least(self, count: int, bound: float) -> tuple[tuple[Segment, ...], float, float] | None:
        """The chain over `count` devices with the least sum of parts, all below `bound`; with its sum and largest part.

        None if there is none.
        """
        below = [part_s < bound * (1 - _ROUNDING) if bound < np.inf else self._is_run for part_s in self._part_s]
        best: dict[int, Floats] = {0: np.where(np.arange(self._n + 1) == self._n, 0.0, np.inf)}
        end: dict[tuple[int, int], NDArray[np.intp]] = {}
        for size in range(1, count + 1):
            allowed_s = [np.where(below[d] & self._fits[d][size - 1], self._sum_s[d], np.inf) for d in self._devices]
            for devices in combinations(self._devices, size):
                mask = sum(1 << d for d in devices)
                totals = []
                for d in devices:
                    whole_s = allowed_s[d] + best[mask & ~(1 << d)]
                    end[mask, d] = whole_s.argmin(axis=1)
                    totals.append(whole_s.min(axis=1))
                best[mask] = np.min(totals, axis=0)
                end[mask, _WHICH] = np.array(devices)[np.argmin(totals, axis=0)]
        every = [sum(1 << d for d in devices) for devices in combinations(self._devices, count)]
        mask = min(every, key=lambda mask: best[mask][0])
        if best[mask][0] == np.inf:
            return None
        segments = self._followed(mask, end)
        largest_s = max(float(self._part_s[s.device][s.first, s.last + 1]) for s in segments)
        return segments, float(best[mask][0]), largest_s

    def _followed(self, mask: int, end: dict[tuple[int, int], NDArray[np.intp]]) -> tuple[Segment, ...]:
        """The chain with the least sum over these devices, traced through the choices made at each block."""
        segments: list[Segment] = []
        first = 0
        while mask:
            device = int(end[mask, _WHICH][first])
            after = int(end[mask, device][first])
            segments.append(Segment(first, after - 1, device))
            first, mask = after, mask & ~(1 << device)
        return tuple(segments)


def _passes_s(load: Load) -> Floats:
    """Seconds of each block's forward and backward pass."""
    return np.add(load.forward_s, load.backward_s)


def _runs(values: Floats | NDArray[np.bool_]) -> Floats:
    """The sum over blocks i … j−1, at [i, j]."""
    until = np.concatenate([[0.0], np.cumsum(values)])
    runs: Floats = until[None, :] - until[:, None]
    return runs


def _transfers(problem: Problem) -> Floats:
    """Seconds, in one direction, for all that blocks i … j−1 take from earlier ones, at [i, j]; as if sent at once."""
    n = len(problem.graph.blocks)
    taken = np.zeros((n + 1, n + 1))
    for edge in problem.graph.edges:
        for first in range(edge.source + 1, n):
            inside = next((target for target in edge.targets if target >= first), None)
            if inside is not None:
                taken[first, inside + 1 :] += edge.bytes_per_sample
    latency_s = problem.transfer_s(0)
    a_byte_s = problem.transfer_s(1) - latency_s
    return np.where(taken > 0, latency_s + a_byte_s * taken, 0.0)
