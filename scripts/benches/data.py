"""Whether `run --data` finds an input pipeline's ceiling, and `Split.fit` gives what it says."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np

from gpubalance.results.run import InputPipeline, Run
from gpubalance.training.split import Split
from scripts.benches.loops import Ours, SplitFit
from scripts.benches.turns import in_processes, measured, printed, ratio_of
from scripts.benches.wanted import Wanted, judged
from tests.support.known import known

_BATCHES = (5, 3)
_SLEEP_S = 0.1  # for each batch; a call of Python adds a millisecond
_CEILING = sum(_BATCHES) / _SLEEP_S
_MOST = 6
# A step takes half as long as one call.
_PAIR = '[[device]]\nname = "Slow {}"\nalpha_s = 0.05\nbeta_s = 0.00001\n'
_EPOCHS = 30
_SIZE = 96
_STEPS = 4
# The longer an iterator has lived, the longer tf.data's autotuning thread sleeps.
_STEP_S = 0.4


def slow() -> Any:
    """The pipeline with one call after the other."""
    return _batches().map(_decode)


def fast() -> Any:
    """The same pipeline with calls in parallel and ahead of the devices."""
    import tensorflow as tf

    options = tf.data.Options()
    # Else calls at once are limited to the cores
    options.threading.private_threadpool_size = 16
    data = _batches().with_options(options)
    return data.map(_decode, num_parallel_calls=8).prefetch(tf.data.AUTOTUNE)


def _batches() -> Any:
    import tensorflow as tf

    samples = np.zeros((64, 28, 28, 1), "float32"), np.zeros(64, "int64")
    return tf.data.Dataset.from_tensor_slices(samples).repeat().batch(sum(_BATCHES))


def _decode(images: Any, labels: Any) -> Any:
    import tensorflow as tf

    def waits(values: Any) -> Any:
        time.sleep(_SLEEP_S)
        return values

    return tf.ensure_shape(
        tf.numpy_function(waits, [images], tf.float32), (None, 28, 28, 1)
    ), labels


def main() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        pair = Path(folder, "pair.toml")
        pair.write_text("\n".join(map(_PAIR.format, "AB")))
        pipelines: list[InputPipeline] = []
        ceilings = judged(_ceilings(str(pair), pipelines), Wanted(0.97), _MOST)
        worst = max(abs(one.alone.median / _CEILING - 1) for one in pipelines)
        yield (
            f"a pipeline's rate over its ceiling of {_CEILING:g} samples/s: {ceilings}; "
            f"{worst:.1%} off at most"
        )
        others = [_pipeline(str(pair), "fast") for _ in pipelines]
        for what, found in (
            ("it", pipelines),
            ("the same with parallel calls and prefetch", others),
        ):
            yield (
                f"{what} is named as what binds in {sum(one.binds for one in found)} of "
                f"{len(found)} runs"
            )
        for name in ("slow", "fast"):
            figure = judged(
                in_processes("scripts.benches.data", str(pair), name),
                Wanted(0.95),
                _MOST,
            )
            yield f"Split.fit over run --data, the {name} pipeline: {figure}, in processes"
    maximum, keras_own = (
        float(printed("scripts.benches.data", who)) for who in ("split", "keras")
    )
    yield (
        f"the longest of {_EPOCHS} epochs beyond its steps: {maximum:.2f} s; wanted at most 0.5; "
        f"Keras' {keras_own:.2f}"
    )


def _ceilings(pair: str, pipelines: list[InputPipeline]) -> Iterator[float]:
    while True:
        pipelines.append(_pipeline(pair, "slow"))
        yield pipelines[-1].alone.median / _CEILING


def _pipeline(pair: str, function: str) -> InputPipeline:
    split = (
        "--simulate",
        pair,
        "--batches",
        *map(str, _BATCHES),
        "--baseline",
        "none",
        "--windows",
        "1",
    )
    data = (
        "--model",
        "small",
        "--data",
        f"scripts.benches.data:{function}",
        "--duration",
        "2",
    )
    return known(Run.model_validate_json(measured("run", *split, *data)).pipeline)


def _ratio(pair: str, name: str) -> float:
    fit = SplitFit(Split(batches=_BATCHES, simulate=pair), data=globals()[name])
    run = Ours(_BATCHES, pair, data=f"scripts.benches.data:{name}", seconds=2.0)
    return ratio_of(fit.throughput, run.throughput, 2)


def _longest_s(who: str) -> float:
    """How long an epoch of an everyday pipeline takes at most beyond its steps.

    The steps are a pause and little else.
    """
    from gpubalance.engine.replicas import build_strategy
    from gpubalance.engine.runtime import use_devices

    split = Split(batches=(58, 38), simulate=2)
    with (
        split.scope()
        if who == "split"
        else build_strategy(use_devices(split.devices), "auto").scope()
    ):
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
        )
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
    ends_s: list[float] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: time.sleep(_STEP_S),
        on_epoch_end=lambda *_: ends_s.append(time.perf_counter()),
    )
    model.fit(
        _everyday(_STEPS),
        validation_data=_everyday(2),
        epochs=_EPOCHS,
        verbose=0,
        callbacks=[callback],
    )
    return float(max(np.diff(ends_s))) - _STEPS * _STEP_S  # the first one traces


def _everyday(steps: int) -> Any:
    import tensorflow as tf

    random = np.random.default_rng(0)
    samples = steps * _SIZE
    values = random.random((samples, 16), "float32"), random.integers(0, 4, samples)
    data = tf.data.Dataset.from_tensor_slices(values).shuffle(samples)
    data = data.map(lambda x, y: (2 * x, y), num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(_SIZE // 2)  # regrouped for the split


if __name__ == "__main__":
    print(_ratio(*sys.argv[1:]) if sys.argv[2:] else _longest_s(sys.argv[1]))
