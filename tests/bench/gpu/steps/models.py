"""Runs models that people use at usual sizes."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.numbers.units import format_bytes
from tests.bench.gpu.place import Place, StepFailed
from tests.bench.gpu.steps import Figure

_MODELS = (("MobileNetV2", 128), ("ResNet50", 64), ("EfficientNetB0", 64))


def figures(place: Place) -> Iterator[Figure]:
    """A figure for each model with 1,000 classes and images of 224×224. Raises StepFailed at the end if one failed."""
    failed = []
    for model, batch in [(place.model, 8)] if place.rehearsed else _MODELS:
        try:
            yield _measured(place, model, batch)
        except StepFailed as error:
            failed.append(f"{model}: {error}")
    if failed:
        raise StepFailed("; ".join(failed))


def _measured(place: Place, model: str, batch: int) -> Figure:
    run = place.program(
        *("run", *place.options(1), "--model", model, "--batches", str(batch), "--precision", "mixed_float16"),
        *("--baseline", "none", "--windows", "1", "--duration", "0.5" if place.rehearsed else "3"),
    ).out
    peak = run["replicas"][0]["memory_peak_bytes"]
    told = f"{run['model']['name']} at {batch}: {run['throughput']['median']:.0f} samples/s"
    return Figure(model, run, told + (f", {format_bytes(peak)}" if peak else ""))
