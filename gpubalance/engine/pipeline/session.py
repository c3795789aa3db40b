"""A model that is too large for one device, ready to be cut, measured and trained in segments."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from gpubalance.engine import keras_inside, runtime
from gpubalance.engine.data import samples_for
from gpubalance.engine.failures import TaskFailedError
from gpubalance.engine.models import facts_of, make_model
from gpubalance.engine.pipeline.blocks import Blocks, blocks_of
from gpubalance.engine.pipeline.calls import Calls, bytes_of
from gpubalance.engine.pipeline.micro_batches import MicroBatch, micro_batch_of, refuse_model
from gpubalance.engine.pipeline.pipeline import Pipeline
from gpubalance.engine.pipeline.step import Step
from gpubalance.planning.pipeline.problem import Segment
from gpubalance.planning.pipeline.timeline import Orders, Task
from gpubalance.results.timing import BlockTimed, Timing
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import Settings


class LayersSession:
    """Builds the model once, in the host's memory; a segment's variables are moved to its device to
    be measured.
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
        """Its blocks begin at the layers `cuts`, if there are any. Raises Refused for a model that
        can't be cut.
        """
        self.settings = settings
        self._devices, self._joint, self._seed = tuple(devices), joint, seed
        self._names = runtime.set_up(devices, settings, seed=seed)
        with tf.device("/CPU:0"), keras_inside.without_xla():
            self._model = make_model(settings, takes_data=False)
            calls = Calls(self._model)
            refuse_model(self._model)
            strategy = tf.distribute.get_strategy()
            self._samples = samples_for(
                settings, self._model, strategy, "CPU:0", seed=seed, takes_data=False
            )
        self._blocks = blocks_of(calls, cuts)
        self._pipeline: Pipeline | None = None
        self._used: tuple[Any, int] | None = None  # the last order and micro-batch

    def facts(self) -> dict[str, Any]:
        """What a result records about the model, and the model's blocks; see Session."""
        limits = runtime.memory_limits_bytes(self._devices, self._names)
        return {
            "model": facts_of(self._model),
            "memory_limit_bytes": limits,
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
                pipeline.follow(self._devices, self._joint, micro_batch, seed=self._seed)
                by_profile = pipeline.pace.alone(at_least) if pipeline.pace else {}
                pipeline.pace = None
                timed = time_alone(
                    pipeline, self._blocks, micro, seconds=seconds, at_least=at_least
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
        """Trains in these segments, each device in its order, for `seconds` and at least so many
        timings.

        A stamped timing is one step. Raises TaskFailedError; see Pipeline.
        """
        if self._pipeline is None or self._pipeline.segments != tuple(segments):
            self._pipeline = self._used = None  # its memory is wanted
            self._pipeline = self._pipeline_of(segments)
        pipeline = self._pipeline
        batch = [pipeline.held(self._micro_batch(micro_batch))] * micro_batches
        if (order, micro_batch) != self._used:
            self._used = None
            pipeline.follow(self._devices, self._joint, micro_batch, seed=self._seed)
            # Unmeasured: it is traced, and caches fill.
            pipeline.step(batch, order, patience_s=patience_s)
            self._used = order, micro_batch
        pace = pipeline.pace
        if pace:
            pace.steps = pace.late_steps = 0
        steps = 1 if stamped else steps_per_timing
        for _ in runtime.rounds(seconds, at_least):
            began = pace.next_s if pace else time.perf_counter()
            for _ in range(steps):
                done = pipeline.step(batch, order, stamped=stamped, patience_s=patience_s)
            runtime.wait_for(self._names)
            took_s = (pace.free_s if pace else time.perf_counter()) - began
            timeline = done.timeline if stamped else None
            yield Timing(
                steps=steps,
                seconds=took_s,
                input_wait_s=0.0,
                step_s=timeline and timeline.step_time_s,
                loss_is_finite=all(math.isfinite(float(loss)) for loss in done.losses),
                timeline=timeline,
            )

    def _pipeline_of(self, segments: Sequence[Segment]) -> Pipeline:
        """A new one, with a copy of the model's optimizer without variables."""
        with tf.device("/CPU:0"):
            own = self._model.optimizer
            fresh = type(own).from_config(own.get_config())
        return Pipeline(self._model, self._blocks, segments, self._names, fresh)

    def _micro_batch(self, size: int) -> MicroBatch:
        """Random samples, the same in each call."""
        with tf.device("/CPU:0"):
            return micro_batch_of(self._samples.make(size, salt=1), self._blocks.calls)

    def late_part(self) -> float | None:
        """The part of the last measured steps whose real compute took longer than the profiles'
        time.
        """
        pace = self._pipeline and self._pipeline.pace
        return pace.late_steps / pace.steps if pace and pace.steps else None

    def memory_peaks(self) -> tuple[int | None, ...]:
        """Each device's peak bytes since the last call; a simulated one's by its
        profile and stage.
        """
        pace = self._pipeline and self._pipeline.pace
        by_profile = pace.peak_bytes if pace else [None] * len(self._devices)
        return runtime.memory_peaks(self._devices, self._names, by_profile)


def time_alone(
    pipeline: Pipeline, blocks: Blocks, micro: MicroBatch, *, seconds: float, at_least: int
) -> BlockTimed:
    """Times steps of blocks on one device for `seconds` and at least so many times; measures their
    memory before.

    Other blocks' outputs are random. Then it moves the variables back to the host's memory.
    """
    (section,), (segment,) = pipeline.sections, pipeline.segments
    name = section.device
    given = {slot: micro.inputs[slot] for slot in section.inputs}
    given |= {slot: _random(blocks.calls.tensors[slot], micro.samples) for slot in section.takes}
    micro = pipeline.held(MicroBatch(given, micro.labels, micro.samples))
    order = Task(0, "forward", 0), Task(0, "backward", 0)
    pipeline.prepare(micro)
    first = Step(pipeline, [micro])
    before = runtime.memory_bytes(name, "current")
    runtime.reset_memory_peak(name)
    first.do(order[0])
    held = runtime.memory_bytes(name, "current")
    first.do(order[1])
    peak = runtime.memory_bytes(name, "peak")
    pipeline.step([micro], [order])  # unmeasured, to fill caches
    steps = [
        pipeline.step([micro], [order], stamped=True).measured()
        for _ in runtime.rounds(seconds, at_least)
    ]
    slots = pipeline.update.optimizer.variables if section.trained else ()
    passes = ([one.end_s - one.start_s for one in step.tasks] for step in steps)
    forward_s, backward_s = zip(*passes, strict=True)
    section.place("CPU:0")
    return BlockTimed(
        block=segment.first,
        micro_batch=micro.samples,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=tuple(one.end_s - one.start_s for step in steps for one in step.updates),
        fixed_bytes=sum(map(bytes_of, (*section.variables, *section.trained, *slots))),
        held_bytes=None if before is None or held is None else max(0, held - before),
        working_bytes=None if held is None or peak is None else max(0, peak - held),
    )


def _random(symbol: Any, samples: int) -> Any:
    shape, kind = (samples, *(size or 1 for size in symbol.shape[1:])), tf.as_dtype(symbol.dtype)
    return tf.random.uniform(shape, dtype=kind) if kind.is_floating else tf.zeros(shape, kind)
