"""The points of a replica's step at which its clock is called, to stamp the step or to pace it.

Simulated devices are paced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.pace import Clock, PacedClock

# A replica's stamps in order: it began to compute, had its own gradients, had their sum over all
# replicas, and had updated its weights.
BEGAN, COMPUTED, SUMMED, FINISHED = range(4)
# The least compute or step time. A replica's stamps have an order only if it is paced: a tiny
# model's may be swapped.
_SHORTEST_S = 1e-9


def number_of_replica() -> int:
    """The number of the replica whose step this thread traces."""
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(number))


class Points:
    """Calls a clock at the four points of one replica's step.

    A clock that only counts is called at the second point, one that neither paces, counts nor is
    stamped at none.

    Each method but `begin` takes a `device_scalar`, any float scalar on the replica's device. The
    point's marker is computed from this scalar, whose value does not matter: see `_marker`.
    """

    def __init__(
        self,
        clock: Clock,
        batch: Any,
        micro_batch: Any,
        *,
        stamped: bool,
        xla: bool = False,
    ) -> None:
        """`batch` and `micro_batch` are int32 scalars; without micro-batches they are equal."""
        self._clock = clock
        self._begin = partial(clock.begin, xla=xla)
        self._paced = isinstance(clock, PacedClock)
        self._stamped = stamped
        self._sizes = [batch, micro_batch]
        self._stamps: list[Any] = []

    @contextmanager
    def begin(self, data: Any) -> Iterator[Any]:
        """Yields the data for what the replica computes in the block.

        A paced replica gets it when its step begins. A stamped one computes nothing of the block
        before its stamp.
        """
        if not self._called:
            yield data
            return
        numbers = [
            values for values in tf.nest.flatten(data) if values.dtype != tf.string
        ]
        first = 0.0
        if numbers:
            first = tf.reshape(numbers[0], [-1])[0]
        before_marker = []
        if not self._paced:
            before_marker = [self._host_is_there()]
        # On a GPU the marker is computed after all that was queued before it. So the stamp, which
        # waits for the marker, waits for that too.
        with tf.control_dependencies(before_marker):
            marker = tf.negative(tf.cast(first, tf.float32))
        data = self._call(self._begin, marker, data, self._sizes)
        before_data = []
        if not self._paced:
            before_data = [marker]
        with tf.control_dependencies(before_data):
            yield data

    def _host_is_there(self) -> Any:
        """A number on the replica's device that is available once the host's side of the step runs.

        A copy to the host waits for all kernels that are queued when sender and receiver meet. So
        its receiver, which begins with the host's side, must be there before the marker: else the
        stamp would wait for the first kernels of the step too. On a GPU an int32 stays in the
        host's memory, so that this waits for no kernel.
        """
        with tf.device("/CPU:0"), tf.control_dependencies(self._sizes[:1]):
            there = _on_its_own(tf.numpy_function(lambda: np.int32(0), [], tf.int32))
        return tf.identity(there)

    def computed(self, to_sum: Sequence[Any], *, device_scalar: Any) -> Sequence[Any]:
        """Returns the values to sum, the replica's own gradients among them.

        A paced replica gets them when its profile's compute time is over.
        """
        if self._called or self._clock.counts_computed_steps:
            marker = _marker(device_scalar, to_sum)
            to_sum = self._call(self._clock.computed, marker, to_sum)
        return to_sum

    def summed(self, sums: Sequence[Any], *, device_scalar: Any) -> Sequence[Any]:
        """Returns the sums over all replicas, those of gradients among them.

        A stamped replica gets them once all sums are there, a paced one once sync is over.
        """
        if not self._called:
            return sums
        marker = _marker(device_scalar, sums)
        sums = self._call(self._clock.summed, marker, sums)
        if not self._paced:
            # A device alone would update some weights while it still computes other gradients,
            # mixing the two times.
            sums = _after(marker, sums)
        return sums

    def finished(self, variables: Sequence[Any], *, device_scalar: Any) -> Any:
        """Returns the replica's four stamps, float64 seconds; None unless it is stamped."""
        if self._called:
            # TensorFlow orders the reading of each variable after its update.
            updated = [tf.convert_to_tensor(variable.value) for variable in variables]
            self._call(self._clock.finished, _marker(device_scalar, updated), ())
        if not self._stamped:
            return None
        with tf.device("/CPU:0"):
            return tf.stack(self._stamps)

    @property
    def _called(self) -> bool:
        return self._paced or self._stamped

    def _call(
        self,
        function: Callable[..., float],
        marker: Any,
        values: Any,
        sizes: Sequence[Any] = (),
    ) -> Any:
        """Calls a clock's `function` on the host when `marker` is computed; returns `values`.

        A paced device gets the values after the call. On a GPU no value waits for the call, or
        measuring would slow the step.
        """

        def call(*numbers: Any) -> float:
            *sizes, _ = numbers
            return function(*sizes)

        # Each stamp waits for the one before: a busy host could take the second one first.
        with tf.device("/CPU:0"), tf.control_dependencies(self._stamps[-1:]):
            stamp = _on_its_own(tf.numpy_function(call, [*sizes, marker], tf.float64))
        self._stamps.append(stamp)
        if self._paced:
            return _after(stamp, values)
        return values


def _on_its_own(number: Any) -> Any:
    """The result of a call on the host, a scalar, which other replicas' calls do not wait for.

    TensorFlow chains the stateful ops of all replicas in a function, so that sleeping replicas
    would take turns.
    """
    number.set_shape(())
    tf.compat.v1.get_default_graph().experimental_acd_manager.run_independently(
        number.op
    )
    return number


def _after(op: Any, values: Any) -> Any:
    """The values, available only after `op`."""
    with tf.control_dependencies([op]):
        return tf.nest.map_structure(
            lambda value: None if value is None else tf.identity(value), values
        )


def _marker(device_scalar: Any, values: Sequence[Any]) -> Any:
    """A scalar on the replica's device that is available once all of these values are.

    The host's stamp takes the marker as *data*: on a GPU the marker's copy to the host waits for
    the compute stream, whereas a bare control edge would only wait for the kernels to be queued.
    The marker must be computed: TensorFlow would optimise a mere copy of `device_scalar` away.
    """
    with tf.control_dependencies([value for value in values if value is not None]):
        return tf.negative(device_scalar)


def stamped_times(stamps: Any) -> dict[str, Any]:
    """The seconds of a stamped step for a timing.

    `stamps` are [replica, (began, computed, summed, finished)]. A replica begins its next step as
    soon as its own update is over. So a step's time is the longest of any replica, not the time
    from the first beginning to the last end.
    """
    computes_s = stamps[:, COMPUTED] - stamps[:, BEGAN]
    updates_s = stamps[:, FINISHED] - stamps[:, SUMMED]
    steps_s = stamps[:, FINISHED] - stamps[:, BEGAN]
    return {
        "compute_s": tuple(max(_SHORTEST_S, float(seconds)) for seconds in computes_s),
        "update_s": tuple(max(0.0, float(seconds)) for seconds in updates_s),
        "step_s": max(_SHORTEST_S, float(steps_s.max())),
    }
