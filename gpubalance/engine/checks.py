"""The checks that `doctor` makes in a worker: TensorFlow's libraries, copies, an all-reduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.replicas import build_strategy
from gpubalance.system import versions

_TIMES = 3  # the first is slower: it makes buffers, streams and NCCL's rings


def inspect() -> dict[str, Any]:
    """TensorFlow's build, and whether each CUDA library that it wants can be loaded.

    No device is used.
    """
    build = tf.sysconfig.get_build_info()
    cuda, cudnn = versions.built_for(build)
    problems: dict[str, str | None] = {}
    cudnn_version = cudnn_file = None
    for name, library in runtime.wanted_libraries().items():
        if isinstance(library, str):
            problems[name] = library
            continue
        problems[name] = None
        if name.startswith("libcudnn"):
            cudnn_version = runtime.cudnn_version(library)
            cudnn_file = library._name
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cuda": cuda,
        "cudnn": versions.min_cudnn() or cudnn,
        "capabilities": tuple(build.get("cuda_compute_capabilities", ())),
        "libraries": problems,
        "cudnn_loaded": cudnn_version,
        "cudnn_file": cudnn_file,
    }


def move(values: Any, target: str) -> Any:
    """Copies the values to another device, as TensorFlow does."""
    with tf.device(target):
        return tf.identity(values)


def copy(
    source: str, target: str, nbytes: int, move: Callable[[Any, str], Any] = move
) -> dict[str, Any]:
    """Moves random bytes from `source` to `target`, and compares what is read back from there."""
    # Without zeros, which a broken copy gives.
    sent = np.random.default_rng().integers(1, 256, nbytes, np.uint8)
    # A tensor for each copy, as TensorFlow keeps what it has copied of one, and copies nothing the
    # next time.
    with tf.device(source):
        there = [tf.identity(sent) for _ in range(_TIMES)]
    moved, seconds = _fastest([source, target], lambda: move(there.pop(), target))
    came = moved.numpy()
    differs = came != sent
    return {
        "elements": nbytes,
        "differing": int(np.count_nonzero(differs)),
        "zeros": int(np.count_nonzero(differs & (came == 0))),
        "seconds": seconds,
    }


def reduce(names: Sequence[str], nbytes: int) -> dict[str, Any]:
    """Sums integers, exact in float32, over the devices with the strategy's own all-reduce."""
    strategy = build_strategy(tuple(names), "auto")
    random = np.random.default_rng()
    count = max(1, nbytes // 4)
    parts = [random.integers(0, 1000, count).astype(np.float32) for _ in names]

    def on_device(context: Any) -> Any:
        replica = context.replica_id_in_sync_group
        with tf.device(names[replica]):
            return tf.identity(parts[replica])

    values = strategy.experimental_distribute_values_from_function(on_device)

    def replica_sum(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, value
        )

    @tf.function(autograph=False)
    def step(values: Any) -> Any:
        return strategy.run(replica_sum, args=(values,))

    summed, seconds = _fastest(names, lambda: step(values))
    total = np.sum(parts, axis=0, dtype=np.float32)
    results = strategy.experimental_local_results(summed)
    differing = [int(np.count_nonzero(result.numpy() != total)) for result in results]
    return {"differing": tuple(differing), "seconds": seconds}


def _fastest(names: Sequence[str], act: Callable[[], Any]) -> tuple[Any, float]:
    """The last of some results, and the seconds of the fastest, until these devices were done."""
    seconds = []
    for _ in range(_TIMES):
        runtime.wait_for(names)
        began = time.perf_counter()
        result = act()
        runtime.wait_for(names)
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)
