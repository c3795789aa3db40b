"""How long simulated queues take by the tail rule, beside pulling and beside the best that hindsight knows."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from tests.planning.queues import best_s, drawn, makespan_s

QUEUES = 1000
# Of a thousand queues: commands that take all the same, much the same, as a search's trials do, and anything.
_SPREADS = (0.0, 0.1, 0.3, 0.7)


def main(queues: int = QUEUES, seed: int = 0) -> Iterator[str]:
    """A line for each kind of machine, without a probe and with one."""
    yield f"{queues} queues a line, from seed {seed}; commands spread by {', '.join(f'{one:g}' for one in _SPREADS)}"
    yield "machine, commands                       over pulling: mean, worst, best   pulling over the best possible"
    for probed in (False, True):
        for name, count, speeds in (
            ("two alike, 2 to 10", (2, 10), (1.0, 1.0)),
            ("one half as fast, 2 to 7", (2, 7), (1.0, 0.5)),
            ("one 0.4 as fast, 2 to 7", (2, 7), (1.0, 0.4)),
            ("1 to 4 times as fast, 2 or 3, 2 to 9", (2, 9), ()),
        ):
            yield _line(f"{name}{', probed' if probed else ''}", Random(seed), queues, count, speeds, probed=probed)


def _line(
    name: str, random: Random, queues: int, counts: tuple[int, int], speeds: tuple[float, ...], *, probed: bool
) -> str:
    ratios, possible = [], []
    for number in range(queues):
        of = speeds or tuple(1 / random.uniform(1, 4) for _ in range(random.choice((2, 3))))
        spread = _SPREADS[number % len(_SPREADS)]
        queue = drawn(random, counts=counts, speeds=of, spread=spread, probed=probed)
        pulled_s = makespan_s(queue, pull=True)
        ratios.append(makespan_s(queue) / pulled_s)
        possible.append(best_s(queue) / pulled_s)
    mean, worst, best = np.mean(ratios), max(ratios), min(ratios)
    return f"{name:45} {mean:.3f}, {worst:.2f}, {best:.2f}; the best possible {np.mean(possible):.3f}"
