"""The cut is the best there is: held against every cut on every order of devices."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import pytest

from gpubalance.planning.pipeline.partition import chains
from gpubalance.planning.pipeline.problem import Problem
from tests.planning.pipeline.problems import drawn


def brute(problem: Problem) -> float | None:
    """The least step time by the objective, computed term by term from its definition; None if nothing fits."""
    n, found = len(problem.graph.blocks), []
    for count in range(problem.least_devices, min(n, len(problem.loads)) + 1):
        for cuts in combinations(sorted(problem.graph.cuts), count - 1):
            ends = [0, *cuts, n]
            for devices in permutations(range(len(problem.loads)), count):
                parts = [_part(problem, d, ends[i], ends[i + 1], count - i) for i, d in enumerate(devices)]
                if all(fits for _, _, fits in parts):
                    step = sum(t + 2 * x for t, x, _ in parts)
                    step += (problem.micro_batches - 1) * max(max(t, x) for t, x, _ in parts)
                    found.append(step + sum(problem.loads[devices[0]].update_s[: ends[1]]))
    return min(found, default=None)


def _part(problem: Problem, device: int, first: int, after: int, left: int) -> tuple[float, float, bool]:
    """Seconds of a segment's compute and transfer, and whether memory holds it with `left` segments from it on."""
    load = problem.loads[device]
    compute = sum(load.forward_s[b] + load.backward_s[b] for b in range(first, after))
    taken = [e for e in problem.graph.edges if e.source < first and any(first <= t < after for t in e.targets)]
    size = problem.micro_batch * sum(e.bytes_per_sample for e in taken)
    transfer = problem.latency_s + (size / problem.bytes_per_s if problem.bytes_per_s else 0) if size else 0.0
    held = problem.micro_batches if problem.kind == "gpipe" else min(left, problem.micro_batches)
    needs = sum(load.fixed_bytes[b] + held * load.live_bytes[b] for b in range(first, after))
    fits = load.memory_bytes is None or needs <= load.memory_bytes
    return compute, transfer, fits and math.isfinite(compute)


def test_the_best_chain_is_that_of_brute_force() -> None:
    infeasible = 0
    for seed in range(400):
        problem = drawn(seed)
        best = min((chain.step_time_s for chain in chains(problem)), default=None)
        expected = brute(problem)
        infeasible += expected is None
        assert (best is None) == (expected is None), seed
        assert best is None or best == pytest.approx(expected, rel=1e-9), seed
    assert 20 < infeasible < 200


def test_a_chain_is_what_its_step_time_says() -> None:
    for seed in range(60):
        problem = drawn(seed)
        for chain in chains(problem):
            segments = chain.segments
            assert [s.first for s in segments] == [0, *(s.last + 1 for s in segments[:-1])]
            assert segments[-1].last == len(problem.graph.blocks) - 1
            assert {s.first for s in segments[1:]} <= problem.graph.cuts
            assert len({s.device for s in segments}) == len(segments) >= problem.least_devices
