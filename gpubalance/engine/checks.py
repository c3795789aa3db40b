"""What `doctor` tries in a worker: TensorFlow's libraries, copies between devices, and an all-reduce."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gpubalance.engine import cuda_libraries, runtime
from gpubalance.settings.device import Device

_TIMES = 3  # the first is slower: buffers, streams and NCCL's rings are made


def inspect() -> dict[str, Any]:
    """TensorFlow's build, and what comes of loading each CUDA library that it wants. No device is touched."""
    build = tf.sysconfig.get_build_info()
    cuda, cudnn = build.get("cuda_version"), build.get("cudnn_version")
    packages = Path(tf.__file__).parents[1]
    libraries = []
    for name in cuda_libraries.wanted(cuda, cudnn):
        path, problem = cuda_libraries.load(name, packages, os.environ)
        libraries.append({"name": name, "path": path, "problem": problem})
    loaded = next((lib["path"] for lib in libraries if str(lib["name"]).startswith("libcudnn") and lib["path"]), None)
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cuda": cuda,
        "cudnn": cudnn,
        "capabilities": tuple(build.get("cuda_compute_capabilities", ())),
        "libraries": tuple(libraries),
        "cudnn_loaded": cuda_libraries.cudnn_version(loaded) if loaded else None,
    }


def use(devices: Sequence[Device]) -> tuple[str, ...]:
    """TensorFlow's names for the devices. Raises EnvironmentFault where it lacks one."""
    return runtime.use_devices(devices)


def move(values: Any, target: str) -> Any:
    """The same values on another device, by TensorFlow's own copy."""
    with tf.device(target):
        return tf.identity(values)


def copy(source: str, target: str, nbytes: int, move: Callable[[Any, str], Any] = move) -> dict[str, Any]:
    """Random bytes are made on the host, put on `source`, moved to `target`, and read back from there."""
    sent = np.random.default_rng().integers(1, 256, nbytes, np.uint8)  # without zeros: those are what is looked for
    with tf.device(source):
        there = tf.identity(sent)
    fastest = float("inf")
    for _ in range(_TIMES):
        runtime.wait_for([source, target])
        began = time.perf_counter()
        moved = move(there, target)
        runtime.wait_for([source, target])
        fastest = min(fastest, time.perf_counter() - began)
    came = moved.numpy()
    differs = came != sent
    return {
        "elements": nbytes,
        "differing": int(np.count_nonzero(differs)),
        "zeros": int(np.count_nonzero(differs & (came == 0))),
        "seconds": fastest,
    }


def reduce(names: Sequence[str], nbytes: int) -> dict[str, Any]:
    """Sums whole numbers, which float32 holds exactly, over the devices with the strategy's own all-reduce."""
    strategy = runtime.build_strategy(names, "auto")
    random = np.random.default_rng()
    parts = [random.integers(0, 1000, max(1, nbytes // 4)).astype(np.float32) for _ in names]

    def on_device(context: Any) -> Any:
        replica = context.replica_id_in_sync_group
        with tf.device(names[replica]):
            return tf.identity(parts[replica])

    values = strategy.experimental_distribute_values_from_function(on_device)

    def replica_sum(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    @tf.function(autograph=False)
    def step(values: Any) -> Any:
        return strategy.run(replica_sum, args=(values,))

    fastest = float("inf")
    for _ in range(_TIMES):
        runtime.wait_for(names)
        began = time.perf_counter()
        summed = step(values)
        runtime.wait_for(names)
        fastest = min(fastest, time.perf_counter() - began)
    total = np.sum(parts, axis=0, dtype=np.float32)
    results = strategy.experimental_local_results(summed)
    return {"differing": tuple(int(np.count_nonzero(r.numpy() != total)) for r in results), "seconds": fastest}
