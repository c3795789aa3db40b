"""The record of a gradient noise scale, which `split.monitor(noise=FILE)` writes and --noise-scale reads."""

from __future__ import annotations

from typing import Literal

from gpubalance.results.common import Count, Interval, Positive, Result, Size


class Noise(Result):
    """φ in samples, from the last `steps` stamped steps; null if they don't determine it, and `unknown` says why."""

    kind: Literal["noise"] = "noise"
    model: str
    noise_scale: Positive | None
    noise_scale_ci95: Interval
    unknown: str = ""
    steps: Count
    global_batch: Size
