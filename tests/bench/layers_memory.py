"""Memory of a pipeline on this machine's own allocator, which can be given a limit: each figure is of a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_LIMIT_MIB = 300
_WIDTH, _DEPTH = 1400, 8


def main() -> Iterator[str]:
    """A U-Net's step; a model that is too large for a limit that its halves keep."""
    yield f"peak of a U-Net's step, 8 micro-batches in 3 stages: {_process('step')} MiB"
    parts = {"whole": (0, _DEPTH), "first half": (0, _DEPTH // 2 - 1), "second half": (_DEPTH // 2, _DEPTH)}
    found = {name: _process("part", *map(str, run)) for name, run in parts.items()}
    told = ", ".join(f"the {name} {'out of memory' if peak is None else f'{peak} MiB'}" for name, peak in found.items())
    yield f"Adam on {_DEPTH} layers of {_WIDTH}² weights within {_LIMIT_MIB} MiB: {told}"


def _process(*words: str) -> Any:
    own = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    limit = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(_LIMIT_MIB)} if words[0] == "part" else {}
    command = [sys.executable, "-m", __name__, *words]
    done = subprocess.run(command, env={**os.environ, **own, **limit}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def devices(count: int, *, graph_optimizer: bool = True) -> None:
    """So many CPU devices, that do not share their threads' work."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not graph_optimizer})
    tf.config.threading.set_inter_op_parallelism_threads(2 * count + 2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)


def step() -> int:
    """MiB of a second step, which holds nothing of its trace."""
    import keras
    import tensorflow as tf

    from tests.engine import zoo
    from tests.engine.pipelines import trained

    devices(3)
    found = trained(lambda: zoo.unet(64, 8), keras.optimizers.SGD, steps=1, micro_batches=8)
    tf.config.experimental.reset_memory_stats("CPU:0")
    found.again()
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"] >> 20)


def part(first: str, last: str) -> int | None:
    """MiB of training these blocks alone; None where they do not fit."""
    import keras
    import tensorflow as tf

    from gpubalance.engine.data import Samples
    from gpubalance.engine.failures import TaskFailedError
    from gpubalance.engine.labels import compile_for
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import calls_of
    from gpubalance.engine.pipeline.micro_batches import micro_batch_of
    from gpubalance.engine.pipeline.pipeline import Pipeline
    from gpubalance.engine.pipeline.session import time_alone
    from gpubalance.planning.pipeline.problem import Segment

    dense = [keras.layers.Dense(_WIDTH, "relu") for _ in range(_DEPTH)]
    model = keras.Sequential([keras.Input((_WIDTH,)), *dense, keras.layers.Dense(1)])
    calls = calls_of(model)
    samples = Samples(model, compile_for(model), seed=0)
    blocks, segments = blocks_of(calls), [Segment(int(first), int(last), 0)]
    try:
        pipeline = Pipeline(model, blocks, segments, ["CPU:0"], keras.optimizers.Adam())
        time_alone(pipeline, blocks, micro_batch_of(samples.make(64), calls), seconds=0, at_least=2)
    except (TaskFailedError, tf.errors.ResourceExhaustedError):
        return None
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"] >> 20)


if __name__ == "__main__":
    _, what, *words = sys.argv
    print(json.dumps(step() if what == "step" else part(*words)))
