"""How the learning rate should follow the global batch: advice with sources, not a law."""

from __future__ import annotations

import math


def linear_factor(old: int, new: int) -> float:
    """k = new/old, for SGD: Goyal et al. 2017, arXiv:1706.02677, with a warm-up over the first epochs."""
    return new / old


def square_root_factor(old: int, new: int) -> float:
    """√k, for Adam and its kin: Malladi et al. 2022, arXiv:2205.10287; for SGD Krizhevsky 2014, arXiv:1404.5997."""
    return math.sqrt(new / old)
