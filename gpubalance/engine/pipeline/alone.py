"""Measures what some blocks of a model take on one device: seconds of forward, backward and update, and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine import runtime
from gpubalance.engine.pipeline.blocks import Blocks
from gpubalance.engine.pipeline.calls import bytes_of
from gpubalance.engine.pipeline.micro_batches import MicroBatch, OutputsLoss
from gpubalance.engine.pipeline.section import Passed, Section
from gpubalance.engine.pipeline.traced import copied
from gpubalance.engine.pipeline.update import Update
from gpubalance.results.timing import BlockTimed


class Alone:
    """Blocks on a device, with random tensors in place of other blocks' outputs."""

    def __init__(self, blocks: Blocks, run: tuple[int, int], name: str, loss: OutputsLoss, optimizer: Any) -> None:
        """`run` is the first and the last block. Moves their variables to the device. See Pipeline for the others."""
        self._first, self._calls, self._name = run[0], blocks.calls, name
        self._section = Section(blocks.calls, blocks.span(*run), name)
        self._section.place(name)
        self._section.train_with(loss.part, optimizer.scale_loss)
        trained = self._section.trained
        optimizer.build(trained)
        self._update = Update(optimizer, {0: name}, {0: trained})
        slots = optimizer.variables if trained else ()
        self._fixed_bytes = sum(map(bytes_of, (*self._section.variables, *trained, *slots)))

    def time(self, micro: MicroBatch, *, seconds: float, at_least: int) -> BlockTimed:
        """Times passes of a micro-batch, and updates, for `seconds` and at least so many times.

        Then it moves the variables back to the host's memory.
        """
        with tf.device(self._name):
            given = self._given(micro)
            before = runtime.memory_bytes(self._name, "current")
            runtime.reset_memory_peak(self._name)
            passed = self._section.forward(*given)
            held = runtime.memory_bytes(self._name, "current")
            grads = self._backward(passed)
            peak = runtime.memory_bytes(self._name, "peak")
            self._update.trace(0, grads)
            self._once(given)  # unmeasured, to fill caches
            times = [self._once(given) for _ in runtime.rounds(seconds, at_least)]
        self._section.place("CPU:0")
        forward_s, backward_s, update_s = zip(*times, strict=True)
        return BlockTimed(
            block=self._first,
            micro_batch=micro.samples,
            forward_s=forward_s,
            backward_s=backward_s,
            update_s=update_s,
            fixed_bytes=self._fixed_bytes,
            held_bytes=None if before is None or held is None else max(0, held - before),
            working_bytes=None if held is None or peak is None else max(0, peak - held),
        )

    def _once(self, given: Any) -> list[float]:
        """The seconds of a forward pass, a backward pass and an update."""
        seconds = list[float]()
        made: Any = given
        for work in (lambda given: self._section.forward(*given), self._backward, self._apply):
            runtime.wait_for([self._name])
            began_s = time.perf_counter()
            made = work(made)
            runtime.wait_for([self._name])
            seconds.append(time.perf_counter() - began_s)
        return seconds

    def _apply(self, grads: Sequence[Any]) -> None:
        self._update.apply(0, grads, [self._update.tell(0, grads)] if self._update.meets else [])

    def _given(self, micro: MicroBatch) -> tuple[Any, ...]:
        """What the section's forward pass takes."""
        tensors = {slot: tf.identity(micro.inputs[slot]) for slot in self._section.inputs}
        tensors.update((slot, self._random(slot, micro.samples)) for slot in self._section.takes)
        labels = copied(micro.labels) if self._section.is_last else ()
        total = tf.constant(float(micro.samples))
        return tensors, {}, labels, total, total

    def _backward(self, passed: Passed) -> Sequence[Any]:
        given = {slot: [tf.ones_like(one)] for slot, one in passed.outputs.items() if one.dtype.is_floating}
        self._section.backward(passed, given)
        return self._section.take()

    def _random(self, slot: int, samples: int) -> Any:
        symbol = self._calls.tensors[slot]
        kind = tf.as_dtype(symbol.dtype)
        shape = (samples, *(size or 1 for size in symbol.shape[1:]))
        values = np.random.default_rng(slot).random(shape, np.float32) if kind.is_floating else np.zeros(shape)
        return tf.cast(values, kind)
