"""What XLA can't compile of a step: it takes a replica's part in one piece, before any sum."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import keras

from gpubalance.engine.users_errors import own_frames
from gpubalance.errors import BadInput

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
