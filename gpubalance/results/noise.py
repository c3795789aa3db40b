"""The record of a gradient noise scale, as `split.monitor(noise=FILE)` writes it and --noise-scale reads it."""

from __future__ import annotations

from typing import Literal

from gpubalance.results.common import Count, Interval, Positive, Result, Size


class Noise(Result):
    """φ in samples, of the last `steps` stamped steps; null where they do not tell it, and `unknown` says why."""

    kind: Literal["noise"] = "noise"
    model: str
    noise_scale: Positive | None
    noise_scale_ci95: Interval
    unknown: str = ""
    steps: Count
    global_batch: Size
