"""How far layers over several devices are from one device, model by model.

Also what memory their order takes.

TensorFlow's graph optimizer fuses a model's operations in other ways where it is cut, and a deep
model makes much of roundings that differ. For weights it is off, so that both compute the same
operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from scripts.benches import deep_zoo
from scripts.benches.turns import printed
from tests.engine import zoo
from tests.engine.pipelines import cut_outputs, graph_of, trained
from tests.support.gpu.parts import logical

_STEPS = 5
_SMALL = (
    "masked",
    "several",
    "shared",
    "nested",
    "branches",
    "stopped",
    "regularised",
    "unet",
    "transformer",
)
_DEEP = ("MobileNetV2", "EfficientNetB0", "DenseNet121", "ResNet50")
_DRIFTING = (
    "regularised",
    "unet",
    "transformer",
    "EfficientNetB0",
    "MobileNetV2",
    "ResNet50",
)
_LIMIT_MIB = 300
_WIDTH = 1400
_DEPTH = 8
_PARTS = {
    "whole": (0, _DEPTH),
    "first half": (0, _DEPTH // 2 - 1),
    "second half": (_DEPTH // 2, _DEPTH),
}


def main() -> Iterator[str]:
    yield (
        "without TensorFlow's graph optimizer, the largest difference from one device with the "
        "same micro-batches:"
    )
    yield (
        f"of the outputs, cut before every block; of the weights after {_STEPS} steps in 2 and 3 "
        "stages"
    )
    with ThreadPoolExecutor(2) as processes:
        for found in processes.map(
            lambda names: _process("exact", *names), (_SMALL, *zip(_DEEP))
        ):
            yield from found
    yield (
        "as TensorFlow runs them: a first step's gradients in 3 stages, their difference by their "
        "norm;"
    )
    yield "beside one device whose inputs are each the next number"
    yield from _process("drifts", *_DRIFTING)
    # This machine's own allocator, which can be given a limit.
    memory = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    yield from _process("peak", **memory)
    memory["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(_LIMIT_MIB)
    told = ", ".join(
        line for name in _PARTS for line in _process("part", name, **memory)
    )
    yield f"Adam on {_DEPTH} layers of {_WIDTH}² weights within {_LIMIT_MIB} MiB: {told}"


def _process(what: str, *words: str, **variables: str) -> list[str]:
    return printed("scripts.benches.layers", what, *words, **variables).splitlines()


def _devices(*, graph_optimizer: bool = True) -> None:
    """Three CPU devices, that do not share their threads' work."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": not graph_optimizer}
    )
    tf.config.threading.set_inter_op_parallelism_threads(8)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    logical("CPU", [None] * 3)


def _maker(name: str) -> Callable[[], Any]:
    """What makes the zoo's model of that name, or Keras'."""
    import keras

    for own in (zoo, deep_zoo):
        if hasattr(own, name):
            return getattr(own, name)  # type: ignore[no-any-return]
    return partial(
        getattr(keras.applications, name),
        weights=None,
        input_shape=(64, 64, 3),
        classes=10,
    )


def exact(*names: str) -> Iterator[str]:
    """Outputs and weights of models that are cut beside those of one device."""
    import keras

    _devices(graph_optimizer=False)
    clipped = {"global_clipnorm": 0.1}
    optimizers = {
        "Adam": keras.optimizers.Adam,
        "Adam clipped": partial(keras.optimizers.Adam, **clipped),
        "SGD clipped": partial(keras.optimizers.SGD, 0.1, **clipped),
    }
    for name in names:
        found = [_outputs(_maker(name)())]
        for told, optimizer in optimizers.items():
            train = partial(
                trained, _maker(name), optimizer, micro_batches=3, steps=_STEPS
            )
            two, three = (train(stages=count).weights for count in (2, 3))
            found.append(f"{told} {two:.1g} and {three:.1g}")
            keras.backend.clear_session()
        yield f"{name}: {', '.join(found)}"


def _outputs(model: Any) -> str:
    import keras

    calls, blocks, samples = graph_of(model)
    inputs, _ = samples.make(2)
    expected = keras.tree.flatten(model(inputs, training=False))
    pairs = zip(cut_outputs(model, calls, blocks.starts, inputs), expected, strict=True)
    worst = max(float(np.abs(mine - its).max()) for mine, its in pairs)
    return (
        f"{len(calls.calls)} calls in {len(blocks.starts)} blocks, outputs {worst:.1g}"
    )


def drifts(*names: str) -> Iterator[str]:
    """How far layers are from one device, and one device from itself."""
    import keras
    import tensorflow as tf

    class Gradients(keras.optimizers.Optimizer):  # type: ignore[misc]
        """An optimizer whose update leaves the gradients in the weights' place."""

        def update_step(self, gradient: Any, variable: Any, _: Any) -> None:
            self.assign(variable, tf.convert_to_tensor(gradient))

    _devices()
    for name in names:
        found = trained(
            _maker(name), partial(Gradients, 1.0), micro_batches=3, steps=1, move=True
        )
        keras.backend.clear_session()
        yield (
            f"{name}: {_part(found.model, found.twin):.1g}, itself "
            f"{_part(found.moved, found.twin):.1g}"
        )


def _part(one: Any, other: Any) -> float:
    """The norm of the difference of their weights, by that of the weights."""
    both = (
        [weight.numpy().ravel() for weight in model.trainable_variables]
        for model in (one, other)
    )
    mine, its = map(np.concatenate, both)
    return float(np.linalg.norm(mine - its) / np.linalg.norm(its))


def peak() -> Iterator[str]:
    """The memory of a second step, which holds nothing of its trace."""
    import keras
    import tensorflow as tf

    _devices()
    found = trained(
        lambda: deep_zoo.unet(64, 8), keras.optimizers.SGD, steps=1, micro_batches=8
    )
    tf.config.experimental.reset_memory_stats("CPU:0")
    found.again()
    yield f"peak of a U-Net's step, 8 micro-batches in 3 stages: {_peak_mib()} MiB"


def _peak_mib() -> int:
    import tensorflow as tf

    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"] >> 20)


def part(name: str) -> Iterator[str]:
    """The memory of training these blocks alone, if they fit."""
    import keras
    import tensorflow as tf

    from gpubalance.engine.failures import TaskFailedError
    from gpubalance.engine.pipeline.cut_model import CutModel
    from gpubalance.engine.pipeline.micro_batches import micro_batch_of
    from gpubalance.engine.pipeline.pipeline import Pipeline
    from gpubalance.engine.pipeline.session import time_alone
    from gpubalance.planning.pipeline.problem import Segment

    dense = [keras.layers.Dense(_WIDTH, "relu") for _ in range(_DEPTH)]
    model = keras.Sequential([keras.Input((_WIDTH,)), *dense, keras.layers.Dense(1)])
    calls, blocks, samples = graph_of(model)
    try:
        segments = [Segment(*_PARTS[name], 0)]
        pipeline = Pipeline(
            CutModel(model, blocks, segments, ["CPU:0"], keras.optimizers.Adam())
        )
        micro = micro_batch_of(samples.make(64), calls)
        time_alone(pipeline, calls, micro, seconds=0, at_least=2)
        yield f"the {name} {_peak_mib()} MiB"
    except (TaskFailedError, tf.errors.ResourceExhaustedError):
        yield f"the {name} out of memory"


if __name__ == "__main__":
    for line in globals()[sys.argv[1]](*sys.argv[2:]):
        print(line, flush=True)
