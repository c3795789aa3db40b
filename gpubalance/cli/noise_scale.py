"""The value of --noise-scale: a number of samples, or the file of a monitor that measured it."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from gpubalance.errors import BadInput, UsageError

_LARGEST = 1e12


def noise_scale(text: str) -> float:
    """Samples. Raises UsageError for a number that can't be a noise scale, BadInput for a file without one."""
    with suppress(ValueError):
        value = float(text.replace(",", "").replace("_", ""))
        if math.isfinite(value) and 0 < value <= _LARGEST:
            return value
        raise UsageError(
            f"--noise-scale takes samples, more than 0 and up to {_LARGEST:,.0f}, not {text}",
            remedy="where no noise scale is known, leave it out: then samples per second are maximised",
        )
    from gpubalance.results.noise import Noise
    from gpubalance.results.records import read_record

    found = read_record(Path(text), Noise)
    if found.noise_scale is None:
        raise BadInput(
            f"{text} has no noise scale: {found.unknown}",
            remedy="train for longer with split.monitor(noise=…), or with a smaller every=; or leave --noise-scale out",
        )
    return found.noise_scale
