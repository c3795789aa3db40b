"""What test_plugin.py runs in a process with two fake GPUs.

It is TensorFlow alone, without the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

KIB = 1 << 10


def descriptions() -> list[dict[str, Any]]:
    """What TensorFlow says of its GPUs."""
    from tensorflow.python.client import device_lib

    gpus = [
        device
        for device in device_lib.list_local_devices()
        if device.device_type == "GPU"
    ]
    return [
        {"told": gpu.physical_device_desc, "memory_bytes": gpu.memory_limit}
        for gpu in gpus
    ]


def products() -> dict[str, Any]:
    """When the host began to queue ten products of its own values, and when it had read the last."""
    with tf.device("GPU:0"):
        values = tf.eye(64)
        values.numpy()
        began_s = time.perf_counter()
        for _ in range(10):
            values = tf.matmul(values, values)
        values.numpy()
    return {"began_s": began_s, "read_s": time.perf_counter()}


def difference() -> float:
    """How far the gradients of a small model on a GPU are from those on the CPU."""
    random = np.random.default_rng(0)
    images = random.normal(size=(8, 9, 9, 3)).astype("float32")
    filters = random.normal(size=(3, 3, 3, 4)).astype("float32")
    weights = random.normal(size=(4, 5)).astype("float32")
    labels = random.integers(0, 5, 8)

    @tf.function
    def gradients(images: Any, filters: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((filters, weights))
            found = tf.nn.conv2d(images, filters, 2, "SAME")
            found = tf.nn.batch_normalization(
                found, *tf.nn.moments(found, (0, 1, 2)), None, None, 1e-3
            )
            found = tf.reduce_mean(tf.nn.relu(found), (1, 2)) @ weights
            loss = tf.reduce_sum(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
            )
        return tape.gradient(loss, (filters, weights))

    of_each = []
    for device in ("CPU:0", "GPU:1"):
        with tf.device(device):
            of_each.append(gradients(*map(tf.constant, (images, filters, weights))))
    return max(
        float(np.abs(cpu.numpy() - gpu.numpy()).max())
        for cpu, gpu in zip(*of_each, strict=True)
    )


def flops() -> dict[str, int]:
    """What TensorFlow says of the operations of a graph that has run on a GPU.

    They are named as the graph's nodes.
    """

    @tf.function
    def run(images: Any, filters: Any, gradients: Any, matrix: Any) -> Any:
        by_one = {"strides": (1, 1, 1, 1), "padding": "SAME"}
        found = tf.nn.conv2d(images, filters, 1, "VALID", name="counted_convolution")
        by_filter = tf.nn.depthwise_conv2d(
            found, filters[:, :, :, :2], (1, 1, 1, 1), "SAME", name="counted_depthwise"
        )
        pooled = tf.nn.max_pool2d(found, 2, 2, "VALID", name="counted_pool")
        solid = tf.nn.conv3d(
            images[None], filters[None], (1, 1, 1, 1, 1), "SAME", name="counted_solid"
        )
        to_input = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=images.shape,
            filter=filters,
            out_backprop=gradients,
            name="counted_to_input",
            **by_one,
        )
        to_filter = tf.raw_ops.Conv2DBackpropFilter(
            input=images,
            filter_sizes=filters.shape,
            out_backprop=gradients,
            name="counted_to_filter",
            **by_one,
        )
        product = tf.matmul(matrix, matrix, transpose_b=True, name="counted_product")
        products = tf.matmul(images, filters[0, :1], name="counted_products")
        weights = tf.nn.softmax(product, name="counted_softmax")
        squares = tf.square(weights, name="counted_square")
        return by_filter, pooled, solid, to_input, to_filter, products, squares

    given = [
        tf.ones(shape) for shape in ((2, 8, 8, 4), (3, 3, 4, 4), (2, 8, 8, 4), (6, 10))
    ]
    with tf.device("GPU:0"):
        run(*given)
        graph = run.get_concrete_function(*given).graph
    nodes = [
        node for node in graph.as_graph_def().node if node.name.startswith("counted_")
    ]
    told = {
        node.name: ops.get_stats_for_node_def(graph, node, "flops").value
        for node in nodes
    }
    return {name: int(value) for name, value in told.items() if value is not None}


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
    first, second, _ = run(value)
    return [
        [float(value.numpy()) for value in total.values] for total in (first, second)
    ]


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
    told: dict[str, Callable[[], Any]] = {
        "descriptions": descriptions,
        "products": products,
        "difference": difference,
        "flops": flops,
        "sums": sums,
        "out_of_memory": out_of_memory,
    }
    return {name: tell() for name, tell in told.items()}


def error_of(work: Callable[[], Any]) -> str:
    """What an operation says that fails, after its error's name."""
    try:
        work()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message}"
    return "no error"


def faults() -> dict[str, str]:
    """The errors of a machine whose first GPU has the faults of test_plugin.py."""
    filters, matrix = tf.ones((3, 3, 1, 1)), tf.ones((2, 2))

    @tf.function
    def total() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(2))

    with tf.device("GPU:0"):
        few, many = tf.ones((7, 4, 4, 1)), tf.ones((8, 4, 4, 1))
        return {
            "a smaller convolution": error_of(
                lambda: tf.nn.conv2d(few, filters, 1, "SAME")
            ),
            "a convolution": error_of(lambda: tf.nn.conv2d(many, filters, 1, "SAME")),
            "a depthwise convolution": error_of(
                lambda: tf.nn.depthwise_conv2d(few, filters, (1,) * 4, "SAME")
            ),
            "the first product": error_of(lambda: matrix @ matrix),
            "the second product": error_of(lambda: matrix @ matrix),
            "a sum": error_of(
                lambda: tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).run(total)
            ),
        }


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
    limits = [
        tf.config.LogicalDeviceConfiguration(memory_limit=mib) for mib in (20, 40)
    ]
    tf.config.set_logical_device_configuration(gpu, limits)
    assert len(tf.config.list_logical_devices("GPU")) == 4
    return [out_of_memory(part)["peak"] for part in ("GPU:2", "GPU:3")]
