"""What the check of a model and its data found, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubalance.numbers.units import format_bytes
from gpubalance.render.table import Paragraph
from gpubalance.results.checkup import FEW_SAMPLES, ModelCheck, few_samples_text
from gpubalance.results.common import Model
from gpubalance.settings.settings import Settings


def check_summary(check: ModelCheck) -> Iterator[Paragraph]:
    """Whether a split can train it, how large it is, and the batches of its data."""
    if check.refused is not None:
        split = "a split can't train it, only one device can"
    elif any(warning.code == "not-exact" for warning in check.warnings):
        split = "a split trains it, but not exactly as one device does"
    elif check.compiled_with is not None:
        split = "a split trains it once it is compiled"
    else:
        split = "a split trains it"
    yield f"{check.settings.model} can be measured; {split}"
    yield model_text(check.model, check.settings.data, check.own_batch, check.samples)


def model_text(
    model: Model, data: str | None, own_batch: int | None, samples: int | None
) -> str:
    """The model's weights, what an all-reduce moves, and the batches of the data, in a line."""
    size = format_bytes(model.gradient_bytes)
    weights = (
        f"{model.name}: {model.parameters:,} trainable parameters, {size} of gradients"
    )
    if data is None:
        return f"{weights}; random samples"
    gives = []
    if own_batch:
        gives.append(f"batches of {own_batch}")
    if samples is None:
        gives = gives or ["samples"]
    elif samples <= FEW_SAMPLES:
        gives.append(few_samples_text(samples))
    else:
        gives.append(f"{samples:,} samples in all")
    return f"{weights}; {data} gives {', '.join(gives)}"


def model_built_text(
    settings: Settings,
    model: Model,
    own_batch: int | None,
    warned: Sequence[str],
    samples: int | None,
) -> str:
    """The same while a balance begins, with what a split does not train exactly."""
    texts = [model_text(model, settings.data, own_batch, samples)]
    texts += [f"not exact: {text}" for text in warned]
    return "; ".join(texts)
