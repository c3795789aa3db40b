"""What test_plugin.py runs in a process with two fake GPUs.

It is TensorFlow alone, without the program.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

KIB = 1 << 10


def sums() -> list[list[float]]:
    """The first value of two sums over both GPUs, on each.

    Then the GPUs compute while the first sum is made.
    """
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])

    @tf.function
    def run(value: Any) -> Any:
        def replica(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
            values = tf.fill((200 * KIB,), value * number, name="summed_values")
            first = context.all_reduce("sum", values)
            second = context.all_reduce("sum", values + 1.0)
            one = values[0]
            with tf.device("CPU:0"):
                # The host has waited for the values, so the sum is surely queued.
                arrived = tf.identity(one)
            beside = arrived + value
            for _ in range(40):
                beside = tf.sin(beside, name="beside_the_sum")
            return first[0], second[0], beside

        return strategy.run(replica, args=(value,))

    value = tf.constant(2.0)
    run(value)
    totals = run(value)[:2]
    return [[float(value.numpy()) for value in total.values] for total in totals]


def out_of_memory(device: str = "GPU:1") -> dict[str, Any]:
    """What TensorFlow says when a GPU's memory ends, and the most that it held."""
    kept = []
    try:
        with tf.device(device):
            while True:
                kept.append(tf.zeros((256, KIB)))
    except tf.errors.ResourceExhaustedError as error:
        return {"says": str(error), **tf.config.experimental.get_memory_info(device)}


def all_of_it() -> dict[str, Any]:
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    # Graphs run as they are written.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return {"sums": sums()}


def hangs() -> bool:
    """Whether the host still waits, after a while, for an operation that hangs."""
    with tf.device("GPU:1"):
        values = tf.sin(tf.ones(2))
    waits = threading.Thread(target=values.numpy, daemon=True)
    waits.start()
    waits.join(0.5)
    return waits.is_alive()


def parts() -> list[int]:
    """The most bytes that TensorFlow held on each of two parts of a GPU.

    The two GPUs before it are whole.
    """
    gpu = tf.config.list_physical_devices("GPU")[2]
    of_limit = tf.config.LogicalDeviceConfiguration
    limits = [of_limit(memory_limit=mib) for mib in (20, 40)]
    tf.config.set_logical_device_configuration(gpu, limits)
    assert len(tf.config.list_logical_devices("GPU")) == 4
    return [out_of_memory(part)["peak"] for part in ("GPU:2", "GPU:3")]
