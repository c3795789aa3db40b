"""Whether `run --data` finds the ceiling of an input pipeline, and whether `Split.fit` gives what it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpubalance.numbers.stats import median
from gpubalance.results.run import Pipeline, Run
from gpubalance.training.split import Split
from tests.bench.engine import Ours
from tests.bench.epochs import EPOCHS
from tests.bench.measured import measured
from tests.bench.ratio import in_processes, in_turns
from tests.bench.training import SplitFit
from tests.bench.wanted import Wanted, judged

_BATCHES = (5, 3)
_SLEEP_S = 0.1  # for each batch; a call of Python adds a millisecond
_CEILING = sum(_BATCHES) / _SLEEP_S
_WINDOW_S = 2.0
_PAIRS = 2
_MOST = 6
# A step takes half as long as one call.
_PAIR = '[[device]]\nname = "Slow {}"\nalpha_s = 0.05\nbeta_s = 0.00001\n'


def slow() -> Any:
    """The pipeline with one call after the other."""
    return _batches().map(_decode)


def fast() -> Any:
    """The same pipeline with calls in parallel and ahead of the devices."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = 16  # else calls at once are limited to the cores
    return _batches().with_options(options).map(_decode, num_parallel_calls=8).prefetch(tf.data.AUTOTUNE)


def _batches() -> Any:
    import numpy as np
    import tensorflow as tf

    images = np.zeros((64, 28, 28, 1), "float32")
    return tf.data.Dataset.from_tensor_slices((images, np.zeros(64, "int64"))).repeat().batch(sum(_BATCHES))


def _decode(images: Any, labels: Any) -> Any:
    import time

    import tensorflow as tf

    def waits(values: Any) -> Any:
        time.sleep(_SLEEP_S)
        return values

    return tf.ensure_shape(tf.numpy_function(waits, [images], tf.float32), (None, 28, 28, 1)), labels


def main() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        pair = Path(folder, "pair.toml")
        pair.write_text("\n".join(map(_PAIR.format, "AB")))
        pipelines: list[Pipeline] = []
        ceilings = judged(_ceilings(str(pair), pipelines), Wanted(0.97), _MOST)
        worst = max(abs(one.alone.median / _CEILING - 1) for one in pipelines)
        named = sum(one.binds for one in pipelines)
        yield f"a pipeline's rate alone over its ceiling of {_CEILING:g} samples/s: {ceilings}; {worst:.1%} off at most"
        yield f"it is named as what binds in {named} of {len(pipelines)} runs"
        others = [_pipeline(str(pair), "fast") for _ in pipelines]
        yield f"the same with parallel calls and prefetch: in {sum(one.binds for one in others)} of {len(others)}"
        for name in ("slow", "fast"):
            figure = judged(in_processes("tests.bench.data", str(pair), name), Wanted(0.95), _MOST)
            yield f"Split.fit over run --data, the {name} pipeline: {figure}, in processes"
    most, keras_own = (next(in_processes("tests.bench.epochs", who)) for who in ("split", "keras"))
    yield (
        f"beyond its steps and its validation's the longest of {EPOCHS} epochs took {most:.2f} s, at most 0.5 wanted; "
        f"under Keras' MirroredStrategy {keras_own:.2f} s"
    )


def _ceilings(pair: str, pipelines: list[Pipeline]) -> Iterator[float]:
    while True:
        pipelines.append(_pipeline(pair, "slow"))
        yield pipelines[-1].alone.median / _CEILING


def _pipeline(pair: str, function: str) -> Pipeline:
    split = ("--simulate", pair, "--batches", *map(str, _BATCHES), "--baseline", "none", "--windows", "1")
    data = ("--model", "small", "--data", f"tests.bench.data:{function}", "--duration", "2")
    found = Run.model_validate_json(measured("run", *split, *data)).pipeline
    assert found is not None
    return found


class _Fit(SplitFit):
    """Trains on one of these pipelines."""

    def __init__(self, split: Split, data: Callable[[], Any]) -> None:
        super().__init__(split)  # sets the devices up before anything else uses TensorFlow
        self.data = data()


def _ratio(pair: str, function: str) -> float:
    fit = _Fit(Split(batches=_BATCHES, simulate=pair), globals()[function])
    run = Ours(pair, data=f"tests.bench.data:{function}")
    pairs = in_turns(fit.throughput, lambda: run.throughput(_BATCHES, seconds=_WINDOW_S))
    return median([*islice(pairs, _PAIRS)])


if __name__ == "__main__":
    print(_ratio(*sys.argv[1:]))
