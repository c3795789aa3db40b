"""A segment at work: its calls on its device, forward and backward each as one traced function.

The forward pass returns what the backward pass needs of it, so nothing is computed twice.
TensorFlow's own tape around a traced function would do so too, but takes three times as long as a
short pass itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.pipeline.calls import Calls
from gpubalance.engine.pipeline.traced import Sums, TracedFunction
from gpubalance.engine.sources import has_fixed_rows
from gpubalance.errors import Refused

# Tensors by slot as they cross between segments, each a list with Keras' mask behind it if it has
# one; or gradients.
Tensors = dict[int, Any]


class Passed(NamedTuple):
    """What a forward pass returns, and what its backward pass `needs`, one of those in `passes`.

    `loss` is None if the section adds none; `finals` are the model's outputs, of the last section.
    """

    outputs: Tensors
    finals: Tensors
    loss: Any
    needs: list[Any]
    passes: _Passes | None = None


class _Passes(NamedTuple):
    """Both traced passes, and the slots whose gradients the backward pass takes."""

    forward: TracedFunction
    backward: TracedFunction
    targets: tuple[int, ...]


class _Layers(keras.layers.Layer):  # type: ignore[misc]
    """The layers of some calls as one layer, so that Keras collects their losses and weights as in
    a model.
    """

    def __init__(self, operations: Sequence[Any], run: Callable[..., Any]) -> None:
        super().__init__(name="section")
        self.autocast = False
        self.parts = [one for one in operations if isinstance(one, keras.layers.Layer)]
        self._run_calls = run
        self.built = True

    def call(self, tensors: Any, training: Any = None) -> Any:
        return self._run_calls(tensors, training)


class Section:
    """The calls of a `span`, from its first to before its end, on a device. The last section ends
    with the loss.

    It takes tensors by slot: the model's `inputs`, and from other sections what it `takes`; it
    `gives` them its own.
    """

    def __init__(
        self, calls: Calls, span: tuple[int, int], device: str, loss: Any = None, scale: Any = None
    ) -> None:
        """Moves its variables to the device.

        The last section trains by the `loss`, a function of the model's outputs, its samples, the
        batch's samples and the labels, and all by its `scale`.
        """
        self._calls, self._loss, self._scale = calls, loss, scale
        (first, end), self.device = span, device
        self.own = calls.calls[first:end]
        self.is_last = end == len(calls.calls)
        operations = {id(call.operation): call.operation for call in self.own}
        self._layers = _Layers([*operations.values()], self._run)
        taken = {slot: None for call in self.own for slot in call.takes}
        if self.is_last:
            taken |= dict.fromkeys(calls.outputs)
        self.inputs = tuple(slot for slot in taken if calls.made[slot] < 0)
        self.takes = tuple(slot for slot in taken if 0 <= calls.made[slot] < first)
        made = (slot for call in self.own for slot in call.gives)
        self.gives = tuple(slot for slot in made if max(calls.takers[slot], default=-1) >= end)
        # Those that it takes and returns a gradient for
        self._wanted = [
            slot for slot in self.takes if tf.as_dtype(calls.tensors[slot].dtype).is_floating
        ]
        self.variables = list(self._layers.variables)
        self.trained = list(self._layers.trainable_variables)  # in the order of `take`'s gradients
        self._sums = Sums()
        # Places of such gradients in `backward`'s: see `has_fixed_rows`.
        self._fixed_rows: set[int] = set()
        self._trains: dict[str, _Passes] = {}  # by the labels' kind
        self._idle: set[int] = set()  # slots for which no gradient comes back
        self.place(device)

    @property
    def counted(self) -> list[Any]:
        """The variables that its layers change by themselves: moving means, random states, their
        own metrics.
        """
        return [*self._layers.non_trainable_variables, *self._layers.metrics_variables]

    def place(self, device: str) -> None:
        """Moves its variables to a device."""
        for variable in self.variables:
            keras_inside.move(variable, device)
        self._sources = [variable.value for variable in self.trained]

    def _run(self, tensors: Any, training: Any) -> Any:
        values = {slot: value for slot, (value, *_) in tensors.items()}
        for value, *mask in tensors.values():
            if mask:
                keras_inside.put_mask(value, *mask)
        for call in self.own:
            call.run(values, training=training)
        return values

    def values(self, tensors: Tensors, *, training: bool) -> Tensors:
        """All tensors of its calls by slot, with Keras' masks on them. Call it in a traced
        function.
        """
        with tf.device(self.device):
            return self._layers(tensors, training=training)  # type: ignore[no-any-return]

    def forward(self, tensors: Tensors, labels: Any, samples: Any, total: Any) -> Passed:
        """The forward pass of a micro-batch of `samples`, out of a batch of `total`.

        The first call with a kind of labels traces it, for any number of samples: make that call in
        one thread, as Keras is not thread-safe.
        """
        kind = _kind_of(labels)
        passes = self._trains[kind] = self._trains.get(kind) or self._both(tensors, labels)
        return passes.forward(tensors, labels, samples, total)._replace(passes=passes)  # type: ignore[no-any-return]

    def is_traced(self, labels: Any) -> bool:
        """Whether the passes for labels of this kind are traced in their final form."""
        return _kind_of(labels if self.is_last else ()) in self._trains

    def check_borrowed(self, sections: Sequence[Section]) -> None:
        """Raises Refused if a traced call uses a variable that another section trains, unseen by
        the graph.

        It would get no gradient.
        """
        used = {id(one) for passes in self._trains.values() for one in passes.forward.variables}
        others = (one for other in sections if other is not self for one in other.trained)
        borrowed = next((one for one in others if id(one.value) in used), None)
        if borrowed is not None:
            raise Refused(
                f"the model's layers from {self.own[0].name} to {self.own[-1].name} use "
                f"{borrowed.path}, which another "
                "device has, without being called with it",
                remedy="make the other layer an attribute of the layer that uses its weights",
            )

    def _both(self, tensors: Tensors, labels: Any) -> _Passes:
        given = {}
        for slot, (_, *masks) in tensors.items():
            symbol = self._calls.tensors[slot]
            masked = (tf.TensorSpec([None] * len(mask.shape), mask.dtype) for mask in masks)
            given[slot] = [tf.TensorSpec(symbol.shape, symbol.dtype), *masked]
        number = tf.TensorSpec((), tf.float32)
        specs = given, tf.nest.map_structure(_open, labels), number, number
        return _Passes(TracedFunction(self._training, *specs), *self._backward)

    def _training(self, tensors: Tensors, labels: Any, samples: Any, total: Any) -> Passed:
        """The forward pass. Sets the backward pass, which is traced within it, and its targets.

        If the loss makes variables it is called twice, and the second time counts.
        """
        taken = [tensors[slot][0] for slot in self._wanted]
        with tf.GradientTape() as tape:
            tape.watch(taken)
            values = self.values(tensors, training=True)
            with tf.device(self.device):
                parts = (
                    [self._loss(self._calls.packed(values), samples, total, *labels)]
                    if self.is_last
                    else []
                )
                parts += [own * (samples / total) for own in self.added()]
                loss = tf.add_n(parts) if parts else None
                scaled = [self._scale(loss)] if parts else []
        outputs = {slot: values[slot] for slot in self.gives}
        finals = {slot: values[slot] for slot in self._calls.outputs} if self.is_last else {}
        targets = {
            slot: one
            for slot, one in outputs.items()
            if one.dtype.is_floating and slot not in self._idle
        }

        def gradients(given: Sequence[Any]) -> Any:
            with tf.device(self.device):
                ends, sources = [*scaled, *targets.values()], [*taken, *self._sources]
                grads = tape.gradient(
                    ends, sources, output_gradients=[*map(tf.ones_like, scaled), *given]
                )
            own = grads[len(taken) :]
            self._fixed_rows = {place for place, grad in enumerate(own) if has_fixed_rows(grad)}
            return grads

        backward = TracedFunction(
            gradients, [tf.TensorSpec(one.shape, one.dtype) for one in targets.values()]
        )
        self._backward = backward, tuple(targets)
        return Passed(with_masks(outputs), finals, loss, backward.needs)

    def added(self) -> list[Any]:
        """What its layers have added to the loss in that call.

        Raises Refused for a value for each sample, which Keras would sum.
        """
        losses = self._layers.losses
        if any(own.shape.rank for own in losses):
            raise Refused(
                "a layer adds a loss for each sample, which Keras sums over a batch: "
                "micro-batches need a mean",
                remedy="add_loss(ops.mean(loss))",
            )
        with tf.device(self.device):
            return [tf.cast(own, tf.float32) for own in losses]

    def backward(self, passed: Passed, given: Mapping[int, Sequence[Any]]) -> Tensors:
        """Adds up the gradients of its trained variables, and returns those of what it has taken,
        None without one.

        `given` has for each slot that it gave the gradients that came back.
        """
        assert passed.passes is not None  # noqa: S101  (`forward` has set them)
        _, backward, targets = passed.passes
        idle = [slot for slot in targets if not given[slot]]
        if idle:  # only in the first run; later ones use a new trace without these targets
            self._idle.update(idle)
            self._trains.clear()
        grads = [
            tf.add_n(given[slot] or [tf.zeros_like(passed.outputs[slot][0])]) for slot in targets
        ]
        found = backward(grads, needs=passed.needs)
        self._sums.add(found[len(self._wanted) :])
        return dict(zip(self._wanted, found, strict=False))

    def take(self) -> list[Any]:
        """Returns its variables' summed gradients and forgets them; None where there is none."""
        return self._sums.take(self._fixed_rows)


def with_masks(values: Mapping[int, Any]) -> Tensors:
    """Tensors by slot, with Keras' masks."""
    masks = ((slot, one, keras_inside.mask_of(one)) for slot, one in values.items())
    return {slot: [one] if mask is None else [one, mask] for slot, one, mask in masks}


def _kind_of(labels: Any) -> str:
    """A key that is equal for labels that differ only in their number of samples."""
    return str(tf.nest.map_structure(_open, labels))


def _open(one: Any) -> Any:
    return tf.TensorSpec([None, *one.shape[1:]], one.dtype)
