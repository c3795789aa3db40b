"""The record of `check`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.results.common import (
    LocalLayers,
    Model,
    Refusal,
    Result,
    Warning_,
)
from gpubalance.settings.settings import Settings

# A global batch might have so many samples: data with fewer limits it
FEW_SAMPLES = 8192


class ModelCheck(Result):
    """What the check of a model and its data found, before anything is measured.

    `own_batch` is the number of samples in the batches of the user's data, `samples` that of an
    epoch; null if unknown. `refused` is why a split can't train the model, null if it can.
    `compiled_with` is the optimizer and loss of a user's model that is not compiled, null of one
    that is.
    """

    kind: Literal["check"] = "check"
    settings: Settings
    model: Model
    own_batch: Annotated[int, Field(ge=1)] | None
    samples: Annotated[int, Field(ge=0)] | None = None
    refused: Refusal | None
    local_layers: LocalLayers
    compiled_with: str | None
    warnings: tuple[Warning_, ...]


def few_samples_text(samples: int) -> str:
    """`200 samples in all, so a global batch has at most 200`."""
    return f"{samples:,} samples in all, so a global batch has at most {samples:,}"
