"""Times blocks of a model alone on a device, and measures their memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpubalance.engine import memory, runtime
from gpubalance.engine.pipeline.blocks import Calls, variable_bytes
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.micro_batches import MicroBatch
from gpubalance.engine.pipeline.pipeline import Pipeline
from gpubalance.engine.pipeline.step import Step
from gpubalance.planning.pipeline.timeline import Task
from gpubalance.results.timing import BlockTimed

_PASSES = (Task(0, "forward", 0), Task(0, "backward", 0))


def time_alone(
    pipeline: Pipeline,
    calls: Calls,
    micro: MicroBatch,
    *,
    seconds: float,
    at_least: int,
) -> BlockTimed:
    """Times steps of blocks on one device for `seconds` and at least so many times.

    It measures their memory before. Other blocks' outputs are random. Then it moves the variables
    back to the host's memory.
    """
    cut = pipeline.cut
    (section,) = cut.sections
    inputs = {slot: micro.inputs[slot] for slot in section.inputs}
    for slot in section.takes:
        inputs[slot] = _random(calls.tensors[slot], micro.samples)
    micro = cut.held(MicroBatch(inputs, micro.labels, micro.samples))
    pipeline.prepare(micro)
    held_bytes, working_bytes = _memory_of_passes(cut, micro)
    pipeline.step([micro], [_PASSES])  # unmeasured, to fill caches
    forward_s = []
    backward_s = []
    update_s = []
    for _ in runtime.rounds(seconds, at_least):
        timeline = pipeline.step([micro], [_PASSES], stamped=True).measured()
        forward, backward = timeline.tasks
        (update,) = timeline.updates
        forward_s.append(forward.end_s - forward.start_s)
        backward_s.append(backward.end_s - backward.start_s)
        update_s.append(update.end_s - update.start_s)
    slots = cut.update.optimizer.variables if section.trained else []
    section.place("CPU:0")
    return BlockTimed(
        block=cut.segments[0].first,
        micro_batch=micro.samples,
        forward_s=tuple(forward_s),
        backward_s=tuple(backward_s),
        update_s=tuple(update_s),
        fixed_bytes=sum(
            map(variable_bytes, [*section.variables, *section.trained, *slots])
        ),
        held_bytes=held_bytes,
        working_bytes=working_bytes,
    )


def _memory_of_passes(
    cut: CutModel, micro: MicroBatch
) -> tuple[int | None, int | None]:
    """The bytes that a forward pass keeps, and those that a backward pass takes beside these."""
    name = cut.sections[0].device
    forward, backward = _PASSES
    step = Step(cut, [micro])
    before = memory.memory_bytes(name, "current")
    memory.reset_memory_peak(name)
    step.do(forward)
    held = memory.memory_bytes(name, "current")
    step.do(backward)
    peak = memory.memory_bytes(name, "peak")
    return _rise(before, held), _rise(held, peak)


def _rise(before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return None
    return max(0, after - before)


def _random(symbol: Any, samples: int) -> Any:
    shape = [samples] + [size or 1 for size in symbol.shape[1:]]
    dtype = tf.as_dtype(symbol.dtype)
    if dtype.is_floating:
        return tf.random.uniform(shape, dtype=dtype)
    return tf.zeros(shape, dtype)
