"""Throughput of `Split.fit`, in turns with what `run` measures of the same split, and with Keras' own `fit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.training.split import Split
from tests.bench.engine import BATCHES, EVEN, KerasFit, Ours
from tests.bench.ratio import in_a_process, in_turns, shown
from tests.cli.program import ROOT

_PAIR = str(ROOT / "configs" / "gtx1080ti-gtx1080.toml")
_CASES: dict[str, tuple[str, Sequence[int], float]] = {
    "run, on the simulated pair": (_PAIR, (820, 568), 0.95),
    "run, on plain CPU devices": ("2", BATCHES, 0.95),
    "Keras' fit, on plain CPU devices at an even split": ("2", EVEN, 1.0),
}
_PAIRS = 6
_PROCESSES = 5


def main() -> Iterator[str]:
    for name, (simulate, batches, least) in _CASES.items():
        # A paced step takes what its profile says in every process.
        processes = 1 if simulate == _PAIR else _PROCESSES
        ratios = [in_a_process("tests.bench.training", name) for _ in range(processes)]
        yield f"Split.fit over {name} ({'/'.join(map(str, batches))}): {shown(ratios)}; at least {least}"


class SplitFit(KerasFit):
    """The same training, with the split."""

    def __init__(self, simulate: str, batches: Sequence[int]) -> None:
        self._split = Split(batches=batches, simulate=simulate)
        super().__init__(sum(batches))

    def scope(self) -> Any:
        """Where the model is built."""
        return self._split.scope()

    def fit(self, **options: Any) -> Any:
        """Trains."""
        return self._split.fit(self._model, self._data, **options)


def _ratio(name: str) -> float:
    simulate, batches, _ = _CASES[name]
    if "Keras" in name:
        mine = SplitFit(simulate, batches)  # sets the devices up
        return median(in_turns(mine.throughput, KerasFit(sum(batches)).throughput, _PAIRS))
    run = Ours(simulate)
    return median(in_turns(SplitFit(simulate, batches).throughput, lambda: run.throughput(batches), _PAIRS))


if __name__ == "__main__":
    print(_ratio(sys.argv[1]))
