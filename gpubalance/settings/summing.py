"""How several devices sum their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.settings.choices import AllReduce, Gradients


@dataclass(frozen=True)
class Summing:
    """By which all-reduce, in packs of how many bytes, and as which numbers.

    `pack_bytes` is None for what suits the link, and 0 for all gradients at once.
    """

    all_reduce: AllReduce = "auto"
    pack_bytes: int | None = None
    gradients: Gradients = "full"


AS_USUAL = Summing()
