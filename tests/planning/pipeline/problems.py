"""Random small problems of cutting a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from gpubalance.planning.pipeline.problem import (
    Block,
    BlockLoad,
    CutProblem,
    Edge,
    Graph,
)


def chain_graph(blocks: int, bytes_per_sample: int = 0) -> Graph:
    """A chain of equal blocks."""
    return Graph(
        tuple(Block(f"b{n}", 1, 0, 0, 1 / blocks) for n in range(blocks)),
        tuple(Edge(n, (n + 1,), bytes_per_sample) for n in range(blocks - 1)),
    )


def even_problem(
    stages: int, micro_batches: int, transfer_s: float = 0.0
) -> CutProblem:
    """As many equal blocks as equal devices; only time is scarce.

    A forward takes a second, a backward two.
    """
    n = stages
    load = BlockLoad((1.0,) * n, (2.0,) * n, (0.0,) * n, (1.0,) * n, (1.0,) * n)
    loads = (load,) * n
    return CutProblem(chain_graph(n), loads, 1, micro_batches, latency_s=transfer_s)


def drawn(seed: int, most_devices: int = 4) -> CutProblem:
    """A random problem with skip connections and tight memory.

    It has up to 7 blocks and 24 micro-batches.
    """
    random = Random(seed)
    n = random.randint(1, 7)
    devices = random.randint(1, most_devices)
    edges = [Edge(i, (i + 1,), random.randint(0, 9)) for i in range(n - 1)]
    for _ in range(random.randint(0, 3)):
        source = random.randrange(n)
        targets = [one for one in range(source + 1, n) if random.random() < 0.4]
        edges += [Edge(source, tuple(targets), random.randint(0, 9))] if targets else []
    graph = Graph(chain_graph(n).blocks, tuple(edges))
    fixed, live = ([random.uniform(0, 3) for _ in range(n)] for _ in range(2))
    scarce = random.uniform(0.2, 1.5) * (sum(fixed) + 2 * sum(live))

    def of_blocks(one: Callable[[], float]) -> tuple[float, ...]:
        return tuple(one() for _ in range(n))

    def forward_s() -> float:
        return random.choice([math.inf, *[random.uniform(0.1, 2)] * 15])

    loads = []
    for _ in range(devices):
        times_s = (
            of_blocks(forward_s),
            of_blocks(lambda: random.uniform(0.1, 4)),
            of_blocks(lambda: random.choice([0.0, random.uniform(0, 1)])),
        )
        own = [size * random.choice([1.0, random.uniform(0.8, 1.2)]) for size in fixed]
        limits = [scarce * random.uniform(0.3, 1.2) for _ in range(2)]
        memory = random.choice([math.inf, *limits])
        loads.append(BlockLoad(*times_s, tuple(own), tuple(live), memory))
    return CutProblem(
        graph,
        tuple(loads),
        micro_batch=random.randint(1, 3),
        micro_batches=random.randint(1, 24),
        latency_s=random.choice([0.0, random.uniform(0, 1)]),
        bytes_per_s=random.choice([None, random.uniform(1, 40)]),
    )
