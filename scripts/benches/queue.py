"""How long queues take by the tail rule.

Beside it stand pulling, and the best that hindsight knows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from random import Random

import numpy as np

from scripts.benches.turns import measured
from tests.cli.program import QUICK_PAIR
from tests.planning.queues import best_s, drawn, makespan_s

QUEUES = 1000
# How commands differ: not, as little as a search's trials do, and more.
_SPREADS = (0.0, 0.1, 0.3, 0.7)
_MACHINES: tuple[tuple[str, tuple[int, int], tuple[float, ...]], ...] = (
    ("two alike, 2 to 10 commands", (2, 10), (1.0, 1.0)),
    ("one half as fast, 2 to 7", (2, 7), (1.0, 0.5)),
    ("one 0.4 as fast, 2 to 7", (2, 7), (1.0, 0.4)),
    ("2 or 3, 1 to 4 times as fast, 2 to 9", (2, 9), ()),
)
_TO_GAIN = 0.95  # where pulling takes more than the best by a twentieth


def main(queues: int = QUEUES, seed: int = 0) -> Iterator[str]:
    """A line for each kind of machine, with and without a probe, and one for the program itself."""
    yield f"{queues} queues a line from seed {seed}, over pulling:"
    for probed in (False, True):
        for name, counts, speeds in _MACHINES:
            told = f"{name}{', probed' if probed else ''}"
            yield _line(told, Random(seed), queues, counts, speeds, probed=probed)
    yield f"five scripts of 4 s and 10 s: {_real_s():.1f} s, pulled {_real_s('--pull'):.1f} s"


def _line(
    name: str,
    random: Random,
    queues: int,
    counts: tuple[int, int],
    speeds: tuple[float, ...],
    *,
    probed: bool,
) -> str:
    ratios = []
    possible = []
    for number in range(queues):
        of = speeds or tuple(
            1 / random.uniform(1, 4) for _ in range(random.choice((2, 3)))
        )
        spread = _SPREADS[number % len(_SPREADS)]
        queue = drawn(random, counts=counts, speeds=of, spread=spread, probed=probed)
        pulled_s = makespan_s(queue, pull=True)
        ratios.append(makespan_s(queue) / pulled_s)
        possible.append(best_s(queue) / pulled_s)
    gains = [
        ratio for ratio, best in zip(ratios, possible, strict=True) if best < _TO_GAIN
    ] or [1.0]
    return (
        f"{name:45} mean {np.mean(ratios):.3f}, worst {max(ratios):.2f}, best {min(ratios):.2f}; "
        f"best possible {np.mean(possible):.3f}; {len(gains)} where that is below {_TO_GAIN}: "
        f"{np.mean(gains):.3f}"
    )


def _real_s(*options: str) -> float:
    """The makespan of the program's own queue."""
    script = "if [ $GPUBALANCE_DEVICE = GPU:0 ]; then sleep 4; else sleep 10; fi\n"
    with tempfile.TemporaryDirectory() as folder:
        out = measured(
            "queue",
            "-",
            "--simulate",
            QUICK_PAIR,
            *options,
            given=5 * script,
            XDG_STATE_HOME=folder,
        )
    return float(json.loads(out)["makespan_s"])
