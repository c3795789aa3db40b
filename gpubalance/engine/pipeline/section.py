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

from gpubalance.engine import keras_patches
from gpubalance.engine.feed import open_spec
from gpubalance.engine.pipeline.blocks import Call, Calls
from gpubalance.engine.pipeline.traced import Sums, TracedFunction
from gpubalance.engine.sources import has_fixed_rows
from gpubalance.errors import Refused

# Tensors by slot as they cross between segments, each a list with Keras' mask behind it, if it has
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
    """Both traced passes, and the slots whose gradients the backward pass takes and returns."""

    forward: TracedFunction
    backward: TracedFunction
    targets: tuple[int, ...]
    wanted: tuple[int, ...]


class _Layers(keras.layers.Layer):  # type: ignore[misc]
    """The layers of some calls as one, so that Keras collects their losses and weights."""

    def __init__(self, calls: Sequence[Call], run: Callable[..., Any]) -> None:
        super().__init__(name="section")
        self.autocast = False
        layers = {}
        for call in calls:
            if isinstance(call.operation, keras.layers.Layer):
                layers[id(call.operation)] = call.operation
        self.parts = list(layers.values())
        self._run_calls = run
        self.built = True

    def call(self, tensors: Any, training: Any = None) -> Any:
        return self._run_calls(tensors, training)


class Section:
    """The calls of a `span`, from its first to before its end, on a device.

    The last section ends with the loss. A section takes tensors by slot: the model's `inputs`, and
    from other sections what it `takes`; it `gives` them its own.
    """

    def __init__(
        self,
        calls: Calls,
        span: tuple[int, int],
        device: str,
        loss: Any = None,
        scale: Any = None,
    ) -> None:
        """Moves its variables to the device.

        The last section trains by the `loss`, a function of the model's outputs, its samples, the
        batch's samples and the labels, and all by its `scale`.
        """
        self._calls = calls
        self._loss = loss
        self._scale = scale
        self.device = device
        first, end = span
        self.own = calls.calls[first:end]
        self.is_last = end == len(calls.calls)
        self._layers = _Layers(self.own, self._run)
        taken: dict[int, None] = {}  # in order, each once
        made: list[int] = []
        for call in self.own:
            taken |= dict.fromkeys(call.takes)
            made += call.gives
        if self.is_last:
            taken |= dict.fromkeys(calls.outputs)
        self.inputs = tuple(slot for slot in taken if calls.made[slot] < 0)
        self.takes = tuple(slot for slot in taken if 0 <= calls.made[slot] < first)
        lasts = {slot: max(calls.takers[slot], default=-1) for slot in made}
        self.gives = tuple(slot for slot in made if lasts[slot] >= end)
        self.variables = list(self._layers.variables)
        # In the order of `take`'s gradients
        self.trained = list(self._layers.trainable_variables)
        self._sums = Sums()
        # Places of such gradients in `backward`'s: see `has_fixed_rows`.
        self._fixed_rows: set[int] = set()
        self._trains: dict[str, _Passes] = {}  # by the labels' kind
        self._idle: set[int] = set()  # slots for which no gradient comes back
        self.place(device)

    @property
    def counted(self) -> list[Any]:
        """The variables that its layers change by themselves: moving means, random states."""
        return [*self._layers.non_trainable_variables, *self._layers.metrics_variables]

    @property
    def trainable_changes(self) -> list[Any]:
        """The variables that were frozen or unfrozen since it was made."""
        before = {id(variable): variable for variable in self.trained}
        now = {id(one): one for one in self._layers.trainable_variables}
        both = before | now
        return [both[key] for key in both if (key in before) != (key in now)]

    @property
    def is_in_place(self) -> bool:
        """Whether its layers have the variables, and these the values, that it was traced with."""
        now = [variable.value for variable in self._layers.variables]
        return list(map(id, now)) == list(map(id, self._values))

    def place(self, device: str) -> None:
        """Moves its variables to a device."""
        for variable in self.variables:
            keras_patches.move(variable, device)
        self._values = [variable.value for variable in self.variables]
        self._sources = [variable.value for variable in self.trained]

    def _run(self, tensors: Any, training: Any) -> Any:
        values = {}
        for slot, (value, *mask) in tensors.items():
            values[slot] = value
            if mask:
                keras_patches.put_mask(value, mask[0])
        for call in self.own:
            call.run(values, training=training)
        return values

    def values(self, tensors: Tensors, *, training: bool) -> Tensors:
        """All tensors of its calls by slot, with Keras' masks on them. Call it in a trace."""
        with tf.device(self.device):
            return self._layers(tensors, training=training)  # type: ignore[no-any-return]

    def forward(
        self, tensors: Tensors, labels: Any, samples: Any, total: Any
    ) -> Passed:
        """The forward pass of a micro-batch of `samples`, out of a batch of `total`.

        The first call with a kind of labels traces it, for any number of samples: make that call in
        one thread, as Keras is not thread-safe.
        """
        kind = _kind_of(labels)
        if kind not in self._trains:
            self._trains[kind] = self._traced(tensors, labels)
        passes = self._trains[kind]
        return passes.forward(tensors, labels, samples, total)._replace(passes=passes)  # type: ignore[no-any-return]

    def is_traced(self, labels: Any) -> bool:
        """Whether the passes for labels of this kind are traced in their final form."""
        return _kind_of(labels if self.is_last else ()) in self._trains

    def check_borrowed(self, sections: Sequence[Section]) -> None:
        """Raises Refused if a traced call uses a variable that another section trains.

        That is unseen by the graph: it would get no gradient.
        """
        used: set[int] = set()
        for passes in self._trains.values():
            used.update(map(id, passes.forward.variables))
        for other in sections:
            for variable in other.trained:
                if other is not self and id(variable.value) in used:
                    raise Refused(
                        f"the model's layers from {self.own[0].name} to "
                        f"{self.own[-1].name} use {variable.path}, a weight on "
                        "another device, which is not passed to them as an input",
                        remedy="make the layer that owns the weight an attribute of "
                        "the layer that uses it",
                    )

    def _traced(self, tensors: Tensors, labels: Any) -> _Passes:
        taken = {}
        for slot, (value, *masks) in tensors.items():
            taken[slot] = [self._calls.spec_of(slot, value)]
            for mask in masks:
                taken[slot].append(tf.TensorSpec([None] * len(mask.shape), mask.dtype))
        number = tf.TensorSpec((), tf.float32)
        label_specs = tf.nest.map_structure(open_spec, labels)
        forward = TracedFunction(self._training, taken, label_specs, number, number)
        return _Passes(forward, *self._backward)

    def _training(
        self, tensors: Tensors, labels: Any, samples: Any, total: Any
    ) -> Passed:
        """The forward pass. Sets the backward pass, which is traced within it, and its slots.

        If the loss makes variables it is called twice, and the second time counts.
        """
        wanted = tuple(
            slot for slot in self.takes if tensors[slot][0].dtype.is_floating
        )
        taken = [tensors[slot][0] for slot in wanted]
        with tf.GradientTape() as tape:
            tape.watch(taken)
            values = self.values(tensors, training=True)
            with tf.device(self.device):
                loss = self._loss_of(values, labels, samples, total)
                scaled = [] if loss is None else [self._scale(loss)]
        gives = {slot: values[slot] for slot in self.gives}
        finals = {}
        if self.is_last:
            finals = {slot: values[slot] for slot in self._calls.outputs}
        targets = {}
        for slot, tensor in gives.items():
            if tensor.dtype.is_floating and slot not in self._idle:
                targets[slot] = tensor

        def gradients(returned: Sequence[Any]) -> Any:
            """Those of what it takes and of its own variables, by what its outputs' are."""
            with tf.device(self.device):
                grads = tape.gradient(
                    [*scaled, *targets.values()],
                    taken + self._sources,
                    output_gradients=[*map(tf.ones_like, scaled), *returned],
                )
            own = grads[len(taken) :]
            self._fixed_rows = {
                place for place, grad in enumerate(own) if has_fixed_rows(grad)
            }
            return grads

        specs = [
            tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in targets.values()
        ]
        backward = TracedFunction(gradients, specs)
        self._backward = backward, tuple(targets), wanted
        return Passed(with_masks(gives), finals, loss, backward.needs)

    def _loss_of(self, values: Tensors, labels: Any, samples: Any, total: Any) -> Any:
        """What it adds to the batch's loss, None if nothing."""
        parts = []
        if self.is_last:
            outputs = self._calls.packed(values)
            parts.append(self._loss(outputs, samples, total, *labels))
        for added in self.added():
            parts.append(added * (samples / total))
        return tf.add_n(parts) if parts else None

    def added(self) -> list[Any]:
        """What its layers have added to the loss in that call.

        Raises Refused for a value for each sample, which Keras would sum.
        """
        losses = self._layers.losses
        if any(loss.shape.rank for loss in losses):
            raise Refused(
                "a layer adds one loss per sample, which Keras sums over a batch; "
                "micro-batches need the mean",
                remedy="add_loss(ops.mean(loss))",
            )
        with tf.device(self.device):
            return [tf.cast(loss, tf.float32) for loss in losses]

    def backward(
        self, passed: Passed, returned: Mapping[int, Sequence[Any]]
    ) -> Tensors:
        """Adds up the gradients of its trained variables; returns those of what it has taken.

        `returned` has for each slot that it gave the gradients that came back. There may be None.
        """
        assert passed.passes is not None  # noqa: S101  (`forward` has set them)
        _, backward, targets, wanted = passed.passes
        grads = []
        for slot in targets:
            if returned[slot]:
                grads.append(tf.add_n(returned[slot]))
            else:
                # Only in the first run; later ones use a new trace without this target.
                self._idle.add(slot)
                self._trains.clear()
                grads.append(tf.zeros_like(passed.outputs[slot][0]))
        results = backward(grads, needs=passed.needs)
        self._sums.add(results[len(wanted) :])
        return dict(zip(wanted, results, strict=False))

    def take(self) -> list[Any]:
        """Returns its variables' summed gradients and forgets them; None where there is none."""
        return self._sums.take(self._fixed_rows)


def with_masks(values: Mapping[int, Any]) -> Tensors:
    """Tensors by slot, with Keras' masks."""
    tensors = {}
    for slot, value in values.items():
        mask = keras_patches.mask_of(value)
        tensors[slot] = [value] if mask is None else [value, mask]
    return tensors


def _kind_of(labels: Any) -> str:
    """A key that is equal for labels that differ only in their number of samples."""
    return str(tf.nest.map_structure(open_spec, labels))
