"""What a split can't train of a `train_step`, and what XLA can't compile of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import keras

from gpubalance.engine.sources import SAMPLES, sources
from gpubalance.engine.step.part import Change, Part
from gpubalance.engine.step.state import handles
from gpubalance.engine.users_errors import own_frames
from gpubalance.errors import BadInput

_IN_A_CALLBACK = "change it in a callback: on_train_batch_end"


def refuse_problems(model: Any, part: Part) -> None:
    """Raises BadInput if a split can't train what the part's step did."""
    step = f"the train_step of the model {model.name}"
    if part.applied_inside:
        raise BadInput(
            f"{step} applies gradients conditionally or in a loop, but a split "
            "applies them once per step",
            remedy="apply them unconditionally; to accumulate gradients, use "
            "micro_batches= of a Split",
        )
    if len(part.applied) > 1:
        raise BadInput(
            f"{step} applies gradients {len(part.applied)} times, not once",
            remedy="such a model can't be trained with a split",
        )
    if part.masked_batch_norms:
        raise BadInput(
            f"the layer {part.masked_batch_norms[0]} gets a mask, and Keras does not "
            "synchronise batch normalisation with a mask",
            remedy="with synchronized=False each device normalises its own samples; "
            "LayerNormalization gives the same result as on one device",
        )
    _refuse_changes(model, part, step)
    if part.applied:
        _refuse_gradients(model, part, step)


def _refuse_changes(model: Any, part: Part, step: str) -> None:
    """Raises BadInput if the step changes variables in a way that parts can't."""
    late = _changed_late(model, part)
    if late:
        raise BadInput(
            f"{step} changes {late[0].path} after it applies gradients, but a split "
            "applies gradients at the end of the train_step",
            remedy=_IN_A_CALLBACK,
        )
    by_samples = changed_by_samples(part, model.optimizer.variables)
    if by_samples:
        raise BadInput(
            f"{step} sets {by_samples[0].path} from its samples, so each device would "
            "set another value",
            remedy=_IN_A_CALLBACK,
        )
    if not part.applied and changed_by_samples(part, model.trainable_variables):
        raise BadInput(
            f"{step} changes weights without the optimizer, so the devices' weights "
            "would drift apart",
            remedy="use self.optimizer.apply_gradients(zip(gradients, "
            "self.trainable_variables))",
        )


def _changed_late(model: Any, part: Part) -> list[Any]:
    """The variables that a step changes too late, after the gradients were applied.

    They are trained weights, the optimizer's variables, and other weights that are changed by what
    was trained.
    """
    trained = handles(model.trainable_variables)
    always = {id(variable) for variable in model.trainable_variables}
    always |= {id(variable) for variable in model.optimizer.variables}
    weights = {id(variable) for variable in model.weights}

    def is_too_late(change: Change) -> bool:
        key = id(change.variable)
        return key in always or (
            key in weights and bool(trained & sources(change.value))
        )

    return [
        change.variable
        for change in part.changes
        if change.late and is_too_late(change)
    ]


def changed_by_samples(part: Part, variables: Sequence[Any]) -> list[Any]:
    """Those of the variables that a step assigns what it computes from samples."""
    known = {id(variable) for variable in variables}
    states = part.probing.states if part.probing else ()
    changed = []
    for change in part.changes:
        if id(change.variable) in known and SAMPLES in sources(change.value, states):
            changed.append(change.variable)
    return changed


def _refuse_gradients(model: Any, part: Part, step: str) -> None:
    """Raises BadInput if there are none, or if the loss should have been scaled before."""
    gradients, _ = part.applied[0]
    if all(gradient is None for gradient in gradients):
        raise BadInput(
            f"{step} computes no gradient for any weight",
            remedy="compute the loss inside the tape, and scale it there: "
            "loss = self.optimizer.scale_loss(loss)",
        )
    needing = "" if part.is_scaled else _what_needs_scaling(model)
    if needing:
        raise BadInput(
            f"{step} does not scale its loss, which {needing}",
            remedy="add loss = self.optimizer.scale_loss(loss) before taking the "
            "gradients",
        )


def _what_needs_scaling(model: Any) -> str:
    """What a `train_step` without `optimizer.scale_loss` must not have; empty if it has none.

    The gradients of such a step are those of a mean.
    """
    if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        return "synchronised layers need"
    if model._compile_loss is not None:
        for loss in keras.tree.flatten(model._compile_loss._user_loss):
            if getattr(loss, "reduction", "") in ("none", None):
                return "a loss without a reduction needs"
    return ""


IN_ONE_PIECE = (
    "XLA can't compile that, because it compiles a device's part of a step in one piece"
)
# TensorFlow's text on an operation without a form for XLA, and on what else it can't bring there.
_UNKNOWN = re.compile(
    r"Detected unsupported operations .* on \w+: (\w+) .*\{\{node ([^}]+)\}\}"
)
_REASON = re.compile(r"^(.*)\n.*tf2xla conversion failed", re.MULTILINE)


class NotCompiled(BadInput):
    """XLA can't compile the model's step: without it, it may train."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="use --no-xla")


def refuse_what_cannot_compile(model: Any) -> None:
    """Raises NotCompiled for synchronised batch normalisation: its sum comes amid a part."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise NotCompiled(
                f"the model's layer {layer.name} synchronises batch normalisation in "
                f"the middle of a step: {IN_ONE_PIECE}"
            )


def refuse_uncompiled(error: Exception, model: Any) -> NoReturn:
    """Raises NotCompiled, with the user's lines, for what XLA could not compile, else the error."""
    text = str(error)
    reason = _REASON.search(text)
    if reason is None:
        raise error
    what = reason[1].strip()
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        what = f"its operation {unknown[1]} ({unknown[2]})"
    lines = own_frames(error).rstrip()
    place = f", from these lines:\n{lines}" if lines else ""
    raise NotCompiled(
        f"XLA can't compile the model {model.name}: {what}{place}"
    ) from None
