"""An optimizer's update in parts: each device applies the gradients of its own variables.

Keras' `optimizer.apply` for all variables puts all of its arithmetic on the first device. Here it
is traced once for each device and its variables, with copies there of what the optimizer keeps
beside its slots (iterations, learning rate, loss scale). The devices first exchange what it needs
to know of all gradients: the global norm, and whether all are finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.pipeline.traced import Gradient, TracedFunction, copied, spec_of, values_of

# What a device tells the others of its gradients: each one's sum of squares, and whether all are
# finite.
Told: TypeAlias = tuple[Any, Any]


class Update:
    """An optimizer's update, each device for its own variables."""

    def __init__(
        self, optimizer: Any, names: Sequence[str], variables: Mapping[int, Sequence[Any]]
    ) -> None:
        """`optimizer` must be built for all of the model's variables, on the devices where they are
        now.
        """
        self.optimizer, self._names, self.devices = optimizer, names, tuple(variables)
        self._variables = variables
        self._inner = keras_inside.summing(optimizer)
        self._scales = self._inner is not optimizer
        # Each device's twin of the optimizer, and pairs of its scalars and their copies.
        self._twins = {
            d: keras_inside.twin_for(optimizer, own, names[d]) for d, own in variables.items()
        }
        self._trained: dict[int, list[Any]] = {}
        self._order: list[int] = []  # puts all devices' gradients in the optimizer's order
        is_wide = any(one.dtype == "float64" for own in variables.values() for one in own)
        self._kind = tf.float64 if is_wide else tf.float32
        self._tell: dict[int, Any] = {}
        self._apply: dict[int, Any] = {}

    @property
    def meets(self) -> bool:
        """Whether a device's update depends on the other devices' gradients."""
        return self._scales or bool(self._inner.global_clipnorm)

    def begin(self) -> None:
        """Copies the optimizer's own scalars, which a callback may have set, to each device."""
        for _, pairs in self._twins.values():
            for scalar, copy in pairs:
                copy.assign(scalar.value)

    def end(self) -> None:
        """Copies the scalars back to the optimizer, from a device that has changed them."""
        changed = next(
            (device for device, apply in self._apply.items() if apply is not None), self.devices[0]
        )
        for scalar, copy in self._twins[changed][1]:
            scalar.assign(copy)

    def trace(self, device: int, grads: Sequence[Gradient]) -> None:
        """Traces a device's part for gradients like these. Call it in one thread, as Keras is not
        thread-safe.
        """
        specs = [*map(spec_of, _there(grads))]
        pairs = zip(self._variables[device], grads, strict=True)
        self._trained[device] = [one for one, grad in pairs if grad is not None]
        told = tf.TensorSpec([None], self._kind), tf.TensorSpec((), tf.bool)
        self._tell[device] = (
            TracedFunction(partial(self._told, device), specs) if specs and self.meets else None
        )
        self._apply[device] = (
            TracedFunction(partial(self._applied, device), specs, *told) if specs else None
        )
        places = {id(one): place for place, one in enumerate(self._inner._trainable_variables)}
        told_of = [
            places[id(one)] for other in self.devices for one in self._trained.get(other, ())
        ]
        self._order = sorted(range(len(told_of)), key=told_of.__getitem__)

    def tell(self, device: int, grads: Sequence[Gradient]) -> Told:
        """What the other devices need to know of a device's gradients."""
        tell = self._tell[device]
        return tell(_there(grads)) if tell is not None else self._nothing

    @property
    def _nothing(self) -> Told:
        return tf.zeros(0, self._kind), tf.constant(value=True)

    def apply(self, device: int, grads: Sequence[Gradient], told: Sequence[Told]) -> None:
        """Updates a device's variables; `told` has what all devices told if the update `meets`,
        else it is empty.
        """
        apply = self._apply[device]
        if apply is not None:
            squares, finite = self._nothing
            if told:
                every, all_finite = zip(*copied(told), strict=True)
                squares, finite = (
                    tf.gather(tf.concat(every, 0), self._order),
                    tf.reduce_all(all_finite),
                )
            apply(_there(grads), squares, finite)

    def _told(self, device: int, grads: Sequence[Gradient]) -> Told:
        with tf.device(self._names[device]):
            values = [*map(values_of, grads)]
            squares = [tf.reduce_sum(tf.square(tf.cast(value, self._kind))) for value in values]
            return tf.stack(squares), tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(value)) for value in values]
            )

    def _applied(self, device: int, grads: Sequence[Gradient], squares: Any, finite: Any) -> None:
        (twin, _), limit = self._twins[device], self._inner.global_clipnorm
        if self._scales:
            vars(twin)["check_finite"] = lambda _: finite
        with tf.device(self._names[device]):
            if limit:
                factor = self._factor(twin, limit, squares)
                # As Keras does: so Adam sees the sum of an embedding's rows.
                dense = map(tf.convert_to_tensor, grads)
                grads = [one * tf.cast(factor, one.dtype) for one in dense]
            twin.apply(grads, self._trained[device])

    def _factor(self, twin: Any, limit: float, squares: Any) -> Any:
        """The factor of Keras' clipping by a global norm: of unscaled gradients, summed in the same
        order.
        """
        norm = tf.sqrt(tf.reduce_sum(squares))
        if self._scales:
            norm = norm / tf.cast(twin.dynamic_scale, self._kind)
        norm = norm / (self._inner.loss_scale_factor or 1.0)
        return limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)


def _there(grads: Sequence[Gradient]) -> list[Gradient]:
    return [grad for grad in grads if grad is not None]
