"""Weights of a model whose layers are cut into stages beside those of one device, each model in a process of its own.

TensorFlow's graph optimizer fuses a model's operations in other ways where it is cut, and a deep model makes much of
roundings that differ. Here it is off, so that both compute the same operations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tests.bench import layers_memory
from tests.engine import zoo
from tests.engine.pipelines import cut_outputs, trained

_STEPS = 5
_SMALL = ("masked", "several", "shared", "nested", "branches", "stopped", "regularised", "unet", "transformer")
_DEEP = ("MobileNetV2", "EfficientNetB0", "DenseNet121", "ResNet50")


def main() -> Iterator[str]:
    """A line of each model, two processes at a time."""
    yield (
        "in float32, without TensorFlow's graph optimizer, the largest difference from one device with the same "
        f"micro-batches: of the outputs, cut before every block; of the weights after {_STEPS} steps in 2 and 3 stages"
    )
    with ThreadPoolExecutor(2) as processes:
        for names, found in [(names, processes.submit(_process, *names)) for names in (_SMALL, *zip(_DEEP))]:
            yield from found.result().splitlines()[-len(names) :]


def _process(*names: str) -> str:
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __name__, *names]
    return subprocess.run(command, env={**os.environ, **quiet}, stdout=subprocess.PIPE, text=True, check=True).stdout


def maker(name: str) -> Callable[[], Any]:
    """What makes the zoo's model of that name, or Keras'."""
    import keras

    if hasattr(zoo, name):
        return getattr(zoo, name)  # type: ignore[no-any-return]
    return partial(getattr(keras.applications, name), weights=None, input_shape=(64, 64, 3), classes=10)


def _outputs(model: Any) -> str:
    import keras

    from gpubalance.engine.data import Samples
    from gpubalance.engine.labels import compile_for
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import calls_of

    calls = calls_of(model)
    starts = blocks_of(calls).starts
    inputs, _ = Samples(model, compile_for(model), seed=0).make(2)
    expected = keras.tree.flatten(model(inputs, training=False))
    pairs = zip(cut_outputs(model, calls, starts, inputs), expected, strict=True)
    worst = max(float(np.abs(mine - its).max()) for mine, its in pairs)
    return f"{len(calls.calls)} calls in {len(starts)} blocks, outputs {worst:.1g}"


def _weights(make: Callable[[], Any]) -> Iterator[str]:
    import keras

    clipped = {"global_clipnorm": 0.1}
    optimizers = (
        ("Adam", keras.optimizers.Adam),
        ("Adam clipped", partial(keras.optimizers.Adam, **clipped)),
        ("SGD clipped", partial(keras.optimizers.SGD, 0.1, **clipped)),
    )
    for name, optimizer in optimizers:
        found = [trained(make, optimizer, stages=stages, micro_batches=3, steps=_STEPS).weights for stages in (2, 3)]
        keras.backend.clear_session()
        yield f"{name} {found[0]:.1g} and {found[1]:.1g}"


if __name__ == "__main__":
    layers_memory.devices(3, graph_optimizer=False)
    for one in sys.argv[1:]:
        print(f"{one}: {_outputs(maker(one)())}, {', '.join(_weights(maker(one)))}", flush=True)
