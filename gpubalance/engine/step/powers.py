"""With which power the parts of a batch make a quantity of the whole: see `results/decomposition.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from gpubalance.results.decomposition import MEAN, MEAN_AGAIN, OTHER, SUM

_FLOOR = 1e-5


def power_of(whole: Any, parts: Sequence[tuple[float, Any]], near: float) -> int | None:
    """The power with which the parts, each with its weight, make the whole; OTHER if there is none.

    Quantities are marks: [..., (norm, two linear marks)], which agree within `near` of the largest
    norm, and of several within a little of all together. What is 0 everywhere counts as a mean.
    """
    norms = reduce(np.maximum, [whole[..., 0], *(part[..., 0] for _, part in parts)])
    within = near * norms + (_FLOOR * np.linalg.norm(whole[..., 0]) if whole.ndim > 1 else 0.0)

    def makes(power: int) -> bool:
        summed = sum(weight**power * part for weight, part in parts)
        return bool(np.all(np.abs(summed - whole)[..., 1:] <= within[..., None]))

    return next((power for power in (MEAN, SUM, MEAN_AGAIN) if makes(power)), OTHER)
