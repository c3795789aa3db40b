"""Functions of several steps in one call, and functions for batches of one size.

What Python does for a step is in no device's way as a rule. But a sum over devices ends before the
call does, so that of two steps of several devices each waits for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpubalance.engine.feed import Dispatched
from gpubalance.engine.step.logs import DeferredResults
from gpubalance.settings.batch_split import BatchSplit

# Of so many steps what Python does for each is a small part of a call.
_MOST = 8
# TensorFlow optimises a copy of the step for each; 10,000 operations take some seconds. A step of
# more takes longer than what is saved.
_MOST_OPERATIONS = 10_000
# Of the batches that are on the devices at once: those of a call and of the next.
_MOST_BYTES = 16 << 20
# Splits go to and fro between few; each function takes some 40 MiB of the host's memory.
_KEPT = 3


class StepFunction:
    """A traced step, alone or several times in a row, and its deferred logs."""

    def __init__(
        self, function: Any, deferred: DeferredResults, operations: int | None = None
    ) -> None:
        self.deferred = deferred
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

    def max_for(self, dispatched: Dispatched) -> int:
        """How many steps on such batches one call should have."""
        tensors = tf.nest.flatten(dispatched.values)
        nbytes: int = sum(
            tensor.dtype.size * math.prod(tensor.shape) for tensor in tensors
        )
        maximum = min(
            _MOST, _MOST_OPERATIONS // self.operations, _MOST_BYTES // (2 * nbytes)
        )
        return max(1, maximum)


def are_equal(all_dispatched: list[Dispatched]) -> bool:
    """Whether one function takes all of these batches, and deals with each in the same way."""
    first = all_dispatched[0]
    return not any(dispatched.replicated for dispatched in all_dispatched) and all(
        (dispatched.layout, dispatched.shares, dispatched.is_usual)
        == (first.layout, first.shares, first.is_usual)
        for dispatched in all_dispatched
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


class SizedFunctions:
    """The functions of one kind of step, each for shares of certain sizes.

    Shares get theirs at once, unless the caller `defers_size_functions`. Then the function of any
    size trains them until they have lasted for as long as making the last one took, 8 to 25 s for a
    network of 30 convolutions: a split that does not last so long never pays for it, and one that
    does loses at most as much again. How long the first one takes is told by the first run of the
    function of any size, which TensorFlow optimises then: else the first change would wait for
    that.
    """

    def __init__(
        self,
        make: Callable[[BatchSplit], Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._functions: dict[BatchSplit, Any] = {}  # the one used last is last
        self._shares: BatchSplit | None = None
        self._since_s = 0.0
        self._any_has_run = False  # the function of any size
        self._making_s = 0.0  # of the last one, with its first step
        self._made_from_s: float | None = None

    def of(
        self, shares: BatchSplit, *, defers_size_functions: bool
    ) -> tuple[Any, bool]:
        """The function for these shares, None for that of any size; and whether it runs first."""
        now_s = self._clock()
        if self._made_from_s is not None:
            # TensorFlow optimises a function when it runs first.
            self._making_s = now_s - self._made_from_s
            self._made_from_s = None
            self._since_s = now_s  # in that time no step has gained from it
        if shares != self._shares:
            self._shares = shares
            self._since_s = now_s
        if defers_size_functions and not self._any_has_run:
            self._any_has_run = True
            self._made_from_s = now_s
            return None, True
        is_new = shares not in self._functions
        if is_new:
            lasted_s = now_s - self._since_s
            if defers_size_functions and lasted_s < self._making_s:
                return None, False
            self._made_from_s = now_s
            self._functions[shares] = self._make(shares)
            if len(self._functions) > _KEPT:
                del self._functions[next(iter(self._functions))]
        self._functions[shares] = self._functions.pop(shares)
        return self._functions[shares], is_new
