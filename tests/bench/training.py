"""Throughput of `Split.fit`, in turns with what `run` measures of the same split, and with Keras' own `fit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.training.split import Split
from tests.bench.engine import BATCHES, EVEN, KerasFit, Ours, small
from tests.bench.ratio import in_processes, in_turns
from tests.bench.wanted import Wanted, judged
from tests.cli.program import ROOT

_PAIR = str(ROOT / "configs" / "gtx1080ti-gtx1080.toml")
_CASES: dict[str, tuple[str, Sequence[int], float]] = {
    "run, on the simulated pair": (_PAIR, (820, 568), 0.95),
    "run, on plain CPU devices": ("2", BATCHES, 0.95),
    "Keras' fit, on plain CPU devices at an even split": ("2", EVEN, 1.0),
}
_PAIRS = 6
_MOST_PROCESSES = 24


def main() -> Iterator[str]:
    for name, (_, batches, least) in _CASES.items():
        figure = judged(in_processes("tests.bench.training", name), Wanted(least), _MOST_PROCESSES)
        yield f"Split.fit over {name} ({'/'.join(map(str, batches))}): {figure}, in processes"


class SplitFit(KerasFit):
    """The same training with a split."""

    def __init__(self, split: Split, make: Callable[[], Any] = small) -> None:
        self._split = split
        super().__init__(split.global_batch, make=make)

    def scope(self) -> Any:
        """The scope in which the model is built."""
        return self._split.scope()

    def fit(self, **options: Any) -> Any:
        """Trains."""
        return self._split.fit(self._model, self.data, **options)


def _ratio(name: str) -> float:
    simulate, batches, _ = _CASES[name]
    if "Keras" in name:
        mine = SplitFit(Split(batches=batches, simulate=simulate))  # sets the devices up
        return _median(mine.throughput, KerasFit(sum(batches)).throughput)
    run = Ours(simulate)
    return _median(SplitFit(Split(batches=batches, simulate=simulate)).throughput, lambda: run.throughput(batches))


def _median(first: Callable[[], float], second: Callable[[], float]) -> float:
    return median([*islice(in_turns(first, second), _PAIRS)])


if __name__ == "__main__":
    print(_ratio(sys.argv[1]))
