"""The value of --noise-scale: a number of samples, or the file of a monitor that measured it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gpubalance.errors import BadInput


def noise_scale(text: str) -> float:
    """Samples. Raises BadInput for a file without a noise scale."""
    with suppress(ValueError):
        return float(text.replace(",", "").replace("_", ""))
    from gpubalance.results.noise import Noise
    from gpubalance.results.records import read_record

    found = read_record(Path(text), Noise)
    if found.noise_scale is None:
        raise BadInput(
            f"{text} has no noise scale: {found.unknown}",
            remedy="train for longer with split.monitor(noise=…), or with a smaller every=; or leave --noise-scale out",
        )
    return found.noise_scale
