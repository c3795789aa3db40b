"""A pipeline's step as one graph of all its micro-batches, beside a thread a device that runs traced functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpubalance.planning.pipeline.schedule import Task
from gpubalance.planning.pipeline.simulate import inputs_of
from tests.engine import zoo
from tests.engine.pipelines import in_stages, orders_of

_STEPS = 12


def main() -> Iterator[str]:
    """What is traced once, and a step in two stages, by the number of micro-batches."""
    import keras

    mobile = partial(keras.applications.MobileNetV2, weights=None, input_shape=(64, 64, 3), classes=10)
    for name, make, counts in (("U-Net", partial(zoo.unet, 64, 8), (4, 8, 16)), ("MobileNetV2", mobile, (4,))):
        for micro_batches in counts:
            yield f"{name}, {micro_batches} micro-batches of 8: {_compared(make, micro_batches)}"
        keras.backend.clear_session()


def _compared(make: Callable[[], Any], micro_batches: int) -> str:
    import keras

    from gpubalance.engine.data import Samples
    from gpubalance.engine.labels import compile_for
    from gpubalance.engine.pipeline.blocks import blocks_of
    from gpubalance.engine.pipeline.calls import calls_of
    from gpubalance.engine.pipeline.micro_batches import micro_batch_of
    from gpubalance.engine.pipeline.pipeline import Pipeline

    model = make()
    targets, blocks = compile_for(model), blocks_of(calls_of(model))
    segments = in_stages(len(blocks.starts), 2)
    orders = orders_of("1f1b", segments, blocks.graph, micro_batches)
    pipeline = Pipeline(model, blocks, segments, ["CPU:0", "CPU:1"], keras.optimizers.SGD(1e-3))
    samples = Samples(model, targets, seed=0)
    batch = [pipeline.held(micro_batch_of(samples.make(8, salt=n), blocks.calls)) for n in range(micro_batches)]
    ways = {"threads": lambda: pipeline.step(batch, orders), "one graph": _graph(pipeline, batch, orders)}
    return _told({name: _seconds(step, time.process_time) for name, step in ways.items()}, ways)


def _told(once_s: dict[str, float], ways: dict[str, Callable[[], Any]]) -> str:
    """CPU seconds of the first step; of some that are taken in turns, as other work slows all, the shortest's and its
    CPU time.
    """
    least_s, cpu_s = dict.fromkeys(ways, math.inf), dict.fromkeys(ways, math.inf)
    for _ in range(_STEPS):
        for name, step in ways.items():
            began_s = time.process_time()
            least_s[name] = min(least_s[name], _seconds(step, time.perf_counter))
            cpu_s[name] = min(cpu_s[name], time.process_time() - began_s)
    return "; ".join(
        f"{name} {once_s[name]:.1f} s once, {1e3 * least_s[name]:.0f} ms a step ({1e3 * cpu_s[name]:.0f} ms of CPU)"
        for name in ways
    )


def _seconds(step: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    step()
    return clock() - began


def _graph(pipeline: Any, batch: Any, orders: Any) -> Callable[[], Any]:
    """A function of the same tasks in the same orders, which control dependencies keep, and of the updates."""
    import tensorflow as tf

    from gpubalance.engine.pipeline.clock import Clock
    from gpubalance.engine.pipeline.step import Step

    parts, clock = pipeline._parts, Clock("CPU:0")

    def is_ready(task: Task, done: set[Task]) -> bool:
        return done.issuperset(inputs_of(task, parts.links))

    def step() -> Any:
        made = Step(parts, batch, 0.0)
        graph, last = tf.compat.v1.get_default_graph(), dict[int, Any]()
        left = [list(order) for order in orders]
        done: set[Task] = set()
        while any(left):
            device = next(d for d, order in enumerate(left) if order and is_ready(order[0], done))
            task = left[device].pop(0)
            before = len(graph.get_operations())
            with tf.control_dependencies([last[device]] if device in last else []):
                made.do(task, clock)
            last[device] = tf.group(*graph.get_operations()[before:])
            done.add(task)
        for device in range(len(orders)):
            with tf.device(parts.names[device]), tf.control_dependencies([last[device]]):
                made._apply(device, clock)
        return tf.add_n(made.losses)

    traced = tf.function(step, autograph=False)
    return lambda: float(traced())
