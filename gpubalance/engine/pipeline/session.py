"""A model too large for one device: its blocks are timed alone, and it trains cut into segments."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from gpubalance.engine import data, keras_patches, memory, models, runtime
from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.pipeline.blocks import Calls, blocks_of, variable_bytes
from gpubalance.engine.pipeline.cut_model import CutModel
from gpubalance.engine.pipeline.micro_batches import (
    MicroBatch,
    micro_batch_of,
    refuse_model,
)
from gpubalance.engine.pipeline.pipeline import Pipeline, Step
from gpubalance.planning.pipeline.problem import Orders, Segment, Task
from gpubalance.results.timing import BlockTimed, Timing
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import Settings

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
    back to the host's gpus.
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
    for _ in runtime.repetitions(seconds, at_least):
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


class LayersSession:
    """Builds the model once, in the host's gpus.

    A segment's variables are moved to its device to be measured.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        settings: Settings,
        joint: JointProfile,
        *,
        seed: int,
        cuts: Sequence[str],
    ) -> None:
        """Its blocks begin at the layers `cuts`, if there are any.

        Raises Refused for a model that can't be cut.
        """
        self._devices = tuple(devices)
        self._joint = joint
        self._seed = seed
        self._names = runtime.set_up(devices, settings, seed=seed)
        with tf.device("/CPU:0"), keras_patches.without_xla():
            self._model = models.make_model(settings, takes_data=False)
            calls = Calls(self._model)
            refuse_model(self._model)
            strategy = tf.distribute.get_strategy()
            self._samples = data.samples_for(
                settings, self._model, strategy, "CPU:0", seed=seed, takes_data=False
            )
        self._blocks = blocks_of(calls, cuts)
        self._pipeline: Pipeline | None = None
        self._warm_for: tuple[Any, int] | None = None  # an order and a micro-batch

    def facts(self) -> dict[str, Any]:
        """What a result records about the model, and the model's blocks; see Session."""
        return {
            "model": models.facts_of(self._model),
            "memory_limit_bytes": memory.memory_limits_bytes(
                self._devices, self._names
            ),
            "graph": self._blocks.graph,
        }

    def time_blocks(
        self, blocks: Sequence[int], micro_batch: int, *, seconds: float, at_least: int
    ) -> Iterator[BlockTimed]:
        """Times each of these blocks alone on the first device."""
        self._pipeline = None
        micro = self._micro_batch(micro_batch)
        for block in blocks:
            try:
                pipeline = self._pipeline_of((Segment(block, block, 0),))
                pipeline.follow(
                    self._devices, self._joint, micro_batch, seed=self._seed
                )
                by_profile = {}
                if pipeline.pace:
                    by_profile = pipeline.pace.alone(at_least)
                pipeline.pace = None
                timed = time_alone(
                    pipeline,
                    self._blocks.calls,
                    micro,
                    seconds=seconds,
                    at_least=at_least,
                )
            except Exception as error:
                raise TaskFailedError(0, f"block {block} alone") from error
            yield timed.model_copy(update=by_profile)

    def pipe(
        self,
        segments: Sequence[Segment],
        order: Orders,
        micro_batch: int,
        micro_batches: int,
        *,
        seconds: float,
        at_least: int,
        steps_per_timing: int,
        stamped: bool,
        patience_s: float | None = None,
    ) -> Iterator[Timing]:
        """Trains in these segments, each device in its order, and yields timings; see Session.

        A stamped timing is one step. Raises TaskFailedError; see Pipeline.
        """
        if self._pipeline is None or self._pipeline.cut.segments != tuple(segments):
            self._pipeline = self._warm_for = None  # its memory is wanted
            self._pipeline = self._pipeline_of(segments)
        pipeline = self._pipeline
        batch = [pipeline.cut.held(self._micro_batch(micro_batch))] * micro_batches
        train = partial(pipeline.step, batch, order, patience_s=patience_s)
        if (order, micro_batch) != self._warm_for:
            self._warm_for = None
            pipeline.follow(self._devices, self._joint, micro_batch, seed=self._seed)
            train()  # unmeasured: it is traced, and caches fill
            self._warm_for = order, micro_batch
        if pipeline.pace:
            pipeline.pace.steps = pipeline.pace.late_steps = 0
        steps = 1 if stamped else steps_per_timing
        for _ in runtime.repetitions(seconds, at_least):
            yield self._timing(pipeline, train, steps, stamped=stamped)

    def _timing(
        self,
        pipeline: Pipeline,
        train: Callable[..., Step],
        steps: int,
        *,
        stamped: bool,
    ) -> Timing:
        pace = pipeline.pace
        began_s = time.perf_counter()
        if pace:
            began_s = pace.next_s
        for _ in range(steps):
            step = train(stamped=stamped)
        runtime.wait_for(self._names)
        ended_s = time.perf_counter()
        if pace:
            ended_s = pace.free_s
        timeline = step.timeline if stamped else None
        return Timing(
            steps=steps,
            seconds=ended_s - began_s,
            input_wait_s=0.0,
            step_s=timeline and timeline.step_time_s,
            loss_is_finite=all(math.isfinite(float(loss)) for loss in step.losses),
            timeline=timeline,
        )

    def _pipeline_of(self, segments: Sequence[Segment]) -> Pipeline:
        """A new one, with a copy of the model's optimizer without variables."""
        with tf.device("/CPU:0"):
            own = self._model.optimizer
            fresh = type(own).from_config(own.get_config())
        return Pipeline(
            CutModel(self._model, self._blocks, segments, self._names, fresh)
        )

    def _micro_batch(self, size: int) -> MicroBatch:
        """Random samples, the same in each call."""
        with tf.device("/CPU:0"):
            return micro_batch_of(self._samples.make(size, salt=1), self._blocks.calls)

    def late_part(self) -> float | None:
        """The part of the last measured steps that took longer than by the profiles."""
        pace = self._pipeline and self._pipeline.pace
        if not pace or not pace.steps:
            return None
        return pace.late_steps / pace.steps

    def memory_peaks(self) -> tuple[int | None, ...]:
        """Each device's peak bytes since the last call; a simulated one's by its profile."""
        pace = self._pipeline and self._pipeline.pace
        by_profile: Sequence[int | None] = [None] * len(self._devices)
        if pace:
            by_profile = pace.peak_bytes
        return memory.memory_peaks(self._devices, self._names, by_profile)
