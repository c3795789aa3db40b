"""Finds the best placing of a graph's blocks on devices, and their order of tasks, by simulating the step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gpubalance.planning.pipeline.branches import branched
from gpubalance.planning.pipeline.partition import chains
from gpubalance.planning.pipeline.problem import Load, Problem
from gpubalance.planning.pipeline.schedule import MOST_AHEAD, depths_of, most_held, tasks_of
from gpubalance.planning.pipeline.segments import Link, Segment, devices_of, links_between
from gpubalance.planning.pipeline.simulate import simulate
from gpubalance.planning.pipeline.timeline import Task, Timeline

# How many chains are looked at: few for a first good one, then all that may be better if they are not more than that.
_LOOKS = (5_000, 20_000)
_MOST_PASSES = 150_000  # that are simulated after each look: a few seconds of one core
_MOST_BRANCHED = 24
_MOST_DEPTHS = 24  # of one cut
# A step may be longer by this fraction to save devices or micro-batches in flight: less than measurement error.
_WITHIN = 0.001


class NoPlacementError(ValueError):
    """No placing fits. `block` is the number of a block that no device holds by itself, or None."""

    def __init__(self, reason: str, block: int | None = None) -> None:
        super().__init__(reason)
        self.block = block


@dataclass(frozen=True)
class Placement:
    """Segments, each device's tasks in order, and the resulting step by the problem's times.

    `orders` and `peak_bytes` cover all the problem's devices, empty and 0 for those without a segment.
    """

    segments: tuple[Segment, ...]
    links: tuple[Link, ...]
    orders: tuple[tuple[Task, ...], ...]
    peak_bytes: tuple[float, ...]
    in_flight: tuple[int, ...]
    timeline: Timeline

    @property
    def stages(self) -> int:
        """The number of devices in use."""
        return len(devices_of(self.segments))


def place(problem: Problem) -> Placement:
    """The placing with the shortest simulated step. Raises NoPlacementError.

    It simulates chains of segments, and placings of branches. Of those within 0.1 % of the shortest step it chooses the
    one with the fewest devices, then the fewest segments, then the fewest micro-batches in flight.
    """
    found = list(_chained(problem))
    for segments in branched(problem, _MOST_BRANCHED):
        found += placings_of(problem, segments)
    if not found:
        raise _nothing_fits(problem)
    most_s = min(placed.timeline.step_time_s for placed in found) * (1 + _WITHIN)
    as_fast = [placed for placed in found if placed.timeline.step_time_s <= most_s]
    return min(as_fast, key=_order)


def _chained(problem: Problem) -> Iterator[Placement]:
    """Placements of chains, by their bounds, until no bound is below the best step.

    It stops sooner where bounds are so loose that it would take minutes, which is beyond 4 devices and 60 blocks.
    """
    best_s, tried = math.inf, set[tuple[Segment, ...]]()
    for look in _LOOKS:
        left = _MOST_PASSES // (2 * problem.micro_batches * len(problem.loads))
        for chain in chains(problem, best_s * (1 + _WITHIN), look):
            if chain.least_s > best_s * (1 + _WITHIN) or left <= 0:
                break
            if chain.segments not in tried:
                tried.add(chain.segments)
                found = list(placings_of(problem, chain.segments))
                best_s = min([best_s, *(placed.timeline.step_time_s for placed in found)])
                left -= len(found)
                yield from found


def _order(placed: Placement) -> tuple[float, ...]:
    """A sort key that puts the simplest placement first."""
    return placed.stages, len(placed.segments), sum(placed.in_flight), placed.timeline.step_time_s


def placings_of(problem: Problem, segments: tuple[Segment, ...]) -> Iterator[Placement]:
    """These segments in every order of tasks that is worth trying and fits; none if a block is kept off its device."""
    if not all(math.isfinite(sum(problem.loads[one.device].forward_s[one.blocks])) for one in segments):
        return
    links = links_between(problem.graph, segments)
    plain = depths_of(segments, links)
    deepest = _deepest(problem, segments, links, plain)
    for tried in _depths(plain, deepest, links):
        placed = _placed(problem, segments, links, tried)
        if all(_holds(problem, device, peak) for device, peak in enumerate(placed.peak_bytes)):
            yield placed


def _depths(plain: Sequence[int], deepest: Sequence[int], links: Sequence[Link]) -> Iterator[tuple[int, ...]]:
    """All depths up to the deepest; of more than `_MOST_DEPTHS` those that are as much deeper everywhere."""
    ranges = [range(least, most + 1) for least, most in zip(plain, deepest, strict=True)]
    if math.prod(map(len, ranges)) <= _MOST_DEPTHS:
        yield from (one for one in product(*ranges) if all(one[link.target] <= one[link.source] for link in links))
    else:
        for more in range(max(map(len, ranges))):
            yield tuple(min(least + more, most) for least, most in zip(plain, deepest, strict=True))


def _deepest(
    problem: Problem, segments: Sequence[Segment], links: Sequence[Link], plain: Sequence[int]
) -> tuple[int, ...]:
    """Up to `MOST_AHEAD` times the depth, as far as memory allows: a transfer and back then hides behind other work.

    A segment must be as deep as each one behind it, or both wait for each other.
    """
    depths = []
    for number, segment in enumerate(segments):
        limit = problem.loads[segment.device].memory_bytes
        depth = MOST_AHEAD * plain[number]
        if limit is not None:
            others = [n for n, s in enumerate(segments) if s.device == segment.device and n != number]
            taken = sum(_bytes(problem, segments[n], plain[n] + 1) for n in others)
            while depth > plain[number] and taken + _bytes(problem, segment, depth + 1) > limit:
                depth -= 1
        depths.append(depth)
    for link in links:
        depths[link.target] = min(depths[link.target], depths[link.source])
    return tuple(depths)


def _bytes(problem: Problem, segment: Segment, held: int) -> float:
    load = problem.loads[segment.device]
    live = sum(load.live_bytes[segment.blocks])
    return sum(load.fixed_bytes[segment.blocks]) + min(held, problem.micro_batches) * live


def _placed(
    problem: Problem, segments: tuple[Segment, ...], links: tuple[Link, ...], depths: Sequence[int]
) -> Placement:
    queues = [tasks_of(number, problem.micro_batches, depth) for number, depth in enumerate(depths)]
    timeline = simulate(segments, links, queues, problem.costs(segments, links))
    devices = range(len(problem.loads))
    orders = tuple(tuple(timed.task for timed in timeline.of(device)) for device in devices)
    live = [1.0] * len(segments)
    return Placement(
        segments,
        links,
        orders,
        tuple(problem.peak_bytes(segments, order) for order in orders),
        tuple(most_held(order, live)[1] for order in orders),
        timeline,
    )


def _holds(problem: Problem, device: int, peak_bytes: float) -> bool:
    limit = problem.loads[device].memory_bytes
    return limit is None or peak_bytes <= limit


def _nothing_fits(problem: Problem) -> NoPlacementError:
    for number, block in enumerate(problem.graph.blocks):
        if not any(_takes(load, number) for load in problem.loads):
            return NoPlacementError(f"block {block.name} fits no device", number)
    return NoPlacementError("no cut leaves each device a part that it holds")


def _takes(load: Load, block: int) -> bool:
    """Whether the device holds a block with one micro-batch and nothing else."""
    needs = load.fixed_bytes[block] + load.live_bytes[block]
    return math.isfinite(load.forward_s[block]) and (load.memory_bytes is None or needs <= load.memory_bytes)
