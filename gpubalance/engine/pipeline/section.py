"""A segment at work: its calls on its device, forward as one traced function, backward by TensorFlow's own tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gpubalance.engine import keras_inside
from gpubalance.engine.pipeline.calls import Calls

# What crosses to or from another segment: tensors by their slot, and the masks of those that have one.
Tensors = dict[int, Any]


@dataclass(frozen=True)
class Passed:
    """A forward pass: what it gives, and what its backward pass needs. `loss` is None where it adds none."""

    outputs: Tensors
    masks: Tensors
    loss: Any
    tape: Any
    taken: Tensors
    scaled: Any


class _Layers(keras.layers.Layer):  # type: ignore[misc]
    """The layers of some calls as one: so they share a call, and their losses and weights are found as in a model."""

    def __init__(self, operations: Sequence[Any], run: Callable[..., Any], policy: Any) -> None:
        super().__init__(name="section", dtype=policy)
        self.autocast = False
        self.parts = [one for one in operations if isinstance(one, keras.layers.Layer)]
        self._run_calls = run
        self.built = True

    def call(self, tensors: Any, training: Any = None) -> Any:
        return self._run_calls(tensors, training)


class Section:
    """The calls of a `span`, from its first to before its end, on a device. The last one ends with the loss.

    It takes tensors by their slots: `inputs` of the model's, `takes` of other sections'; it `gives` others.
    """

    def __init__(self, calls: Calls, span: tuple[int, int], device: str, policy: Any) -> None:
        self._calls = calls
        self._first, self._end = span
        self.device = device
        self.own = calls.calls[self._first : self._end]
        self.is_last = self._end == len(calls.calls)
        operations = {id(call.operation): call.operation for call in self.own}
        self._layers = _Layers([*operations.values()], self._run, policy)
        taken = {slot: None for call in self.own for slot in call.takes}
        if self.is_last:
            taken |= dict.fromkeys(calls.outputs)
        self.inputs = tuple(slot for slot in taken if calls.made[slot] < 0)
        self.takes = tuple(slot for slot in taken if 0 <= calls.made[slot] < self._first)
        made = (slot for call in self.own for slot in call.gives)
        self.gives = tuple(slot for slot in made if calls.last.get(slot, -1) >= self._end)
        self._traced: Any = None

    @property
    def variables(self) -> list[Any]:
        """All that its layers have, each once."""
        return list(self._layers.variables)

    @property
    def counted(self) -> list[Any]:
        """What its layers change by themselves: moving means, states of random numbers."""
        return list(self._layers.non_trainable_variables)

    @property
    def trained(self) -> list[Any]:
        """Those that get gradients, in the order of `backward`'s."""
        return list(self._layers.trainable_variables)

    def place(self, device: str) -> None:
        """Moves its variables there. No optimizer may know them yet."""
        for variable in self.variables:
            keras_inside.move(variable, device)
        self._sources = [variable.value for variable in self.trained]

    def _run(self, tensors: Any, training: Any) -> Any:
        values, masks = map(_numbered, tensors)
        for slot, mask in masks.items():
            keras_inside.put_mask(values[slot], mask)
        for call in self.own:
            call.run(values, training=training)
        return values

    def values(self, tensors: Tensors, masks: Tensors, *, training: bool) -> Tensors:
        """All tensors of its calls, by slot; with Keras' masks on them. For a traced function."""
        with tf.device(self.device):
            return self._layers((_named(tensors), _named(masks)), training=training)  # type: ignore[no-any-return]

    def train_with(self, loss: Callable[..., Any], labels: Any, scale: Callable[[Any], Any]) -> None:
        """`loss` is Σ of the samples' losses by all values and labels, `labels` are specs, `scale` is for float16."""
        self._loss, self._labels, self._scale = loss, labels, scale

    def forward(self, tensors: Tensors, masks: Tensors, labels: Any, samples: Any, total: Any) -> Passed:
        """One micro-batch of `samples`, of a batch of `total`.

        The first call traces it, for any number of samples: call it in one thread, as Keras is not safe in several.
        """
        if self._traced is None:
            self._traced = self._trace(masks)
        taken = {slot: tensors[slot] for slot in self.takes}
        with tf.GradientTape() as tape:
            tape.watch([tensor for tensor in taken.values() if tensor.dtype.is_floating])
            outputs, found, *losses = self._traced(_named(tensors), _named(masks), labels, samples, total)
        loss, scaled = losses or (None, None)
        return Passed(_numbered(outputs), _numbered(found), loss, tape, taken, scaled)

    def _trace(self, masks: Tensors) -> Any:
        def _whole(tensors: Any, masks: Any, labels: Any, samples: Any, total: Any) -> Any:
            values = self.values(_numbered(tensors), _numbered(masks), training=True)
            with tf.device(self.device):
                parts = [self._loss(values, *labels) / total] if self.is_last else []
                parts += [tf.cast(own, tf.float32) * (samples / total) for own in self._layers.losses]
                outputs = {str(slot): values[slot] for slot in self.gives}
                found = {slot: mask for slot, one in outputs.items() if (mask := keras_inside.mask_of(one)) is not None}
                if not parts:
                    return outputs, found
                loss = tf.add_n(parts)
                return outputs, found, loss, self._scale(loss)

        tensors = {slot: self._calls.tensors[slot] for slot in (*self.inputs, *self.takes)}
        specs = (
            {str(slot): tf.TensorSpec(tensor.shape, tensor.dtype) for slot, tensor in tensors.items()},
            {str(slot): tf.TensorSpec([None] * len(mask.shape), mask.dtype) for slot, mask in masks.items()},
            self._labels if self.is_last else (),
        )
        number = tf.TensorSpec((), tf.float32)
        return tf.function(_whole, autograph=False).get_concrete_function(*specs, number, number)

    def backward(self, passed: Passed, given: Mapping[int, Sequence[Any]]) -> tuple[list[Any], Tensors]:
        """The gradients of its trained variables, and of what it has taken; None where there is none.

        `given` has for each slot that it gave the gradients that came back.
        """
        targets, grads = [], []
        if passed.scaled is not None:
            targets, grads = [passed.scaled], [tf.ones_like(passed.scaled)]
        for slot, back in given.items():
            if back:
                targets.append(passed.outputs[slot])
                grads.append(tf.add_n(back) if len(back) > 1 else back[0])
        wanted = [slot for slot, tensor in passed.taken.items() if tensor.dtype.is_floating]
        sources = [passed.taken[slot] for slot in wanted] + self._sources
        found = passed.tape.gradient(targets, sources, output_gradients=grads) if targets else [None] * len(sources)
        return found[len(wanted) :], dict(zip(wanted, found, strict=False))


def _named(tensors: Mapping[int, Any]) -> dict[str, Any]:
    """TensorFlow's structures have text for keys."""
    return {str(slot): tensor for slot, tensor in tensors.items()}


def _numbered(tensors: Mapping[str, Any]) -> Tensors:
    return {int(slot): tensor for slot, tensor in tensors.items()}
