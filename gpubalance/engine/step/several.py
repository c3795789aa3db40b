"""Several steps in one call of a function: between them the host has nothing to do in Python.

What Python does for a step is in no device's way as a rule. But a sum over devices ends before the
call does, so that of two steps of several devices each waits for it.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import Dealt
from gpubalance.engine.step.later_results import LaterResults

# Of so many steps what Python does for each is a small part of a call.
_MOST = 8
# TensorFlow optimises a copy of the step for each; 10,000 operations take some seconds. A step of
# more takes longer than what is saved.
_MOST_OPERATIONS = 10_000
# Of the batches that are on the devices at once: those of a call and of the next.
_MOST_BYTES = 16 << 20


class StepFunction:
    """A traced step, alone or several times in a row, and its logs that are computed later."""

    def __init__(
        self, function: Any, later: LaterResults, operations: int | None = None
    ) -> None:
        self.later = later
        self._in_a_row = {1: function}
        if operations is None:
            operations = len(function.graph.get_operations())
        self.operations = operations

    @property
    def once(self) -> Any:
        """The step alone."""
        return self._in_a_row[1]

    def has_in_a_row(self, count: int) -> bool:
        """Whether the function of so many steps is traced."""
        return count in self._in_a_row

    def in_a_row(self, count: int) -> Any:
        """The function of so many steps, which takes the batches of all and returns the last's."""
        if count not in self._in_a_row:
            self._in_a_row[count] = _in_a_row(self.once, count)
        return self._in_a_row[count]

    def most_for(self, dealt: Dealt) -> int:
        """How many steps on such batches one call should have."""
        tensors = tf.nest.flatten(dealt.values)
        nbytes: int = sum(
            tensor.dtype.size * math.prod(tensor.shape) for tensor in tensors
        )
        most = min(
            _MOST, _MOST_OPERATIONS // self.operations, _MOST_BYTES // (2 * nbytes)
        )
        return max(1, most)


def are_alike(all_dealt: list[Dealt]) -> bool:
    """Whether one function takes all of these batches, and deals with each in the same way."""
    first = all_dealt[0]
    return not any(dealt.replicated for dealt in all_dealt) and all(
        (dealt.layout, dealt.shares, dealt.is_usual)
        == (first.layout, first.shares, first.is_usual)
        for dealt in all_dealt
    )


def _in_a_row(function: Any, count: int) -> Any:
    (values, micro_batches), _ = function.structured_input_signature

    def steps(all_values: Any, micro_batches: Any) -> Any:
        last = None
        for values in all_values:
            last = function(values, micro_batches)
        return last

    return tf.function(
        steps, input_signature=[(values,) * count, micro_batches], autograph=False
    ).get_concrete_function()
