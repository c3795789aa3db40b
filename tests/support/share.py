"""A count out of a total, and how well that tells the fraction."""

from __future__ import annotations

import math
from dataclasses import dataclass

_Z = 1.96


@dataclass(frozen=True)
class Share:
    """A count out of a total."""

    count: int
    of: int

    @property
    def part(self) -> float:
        """The share as a fraction."""
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's (1927) 95 % interval of the fraction."""
        spread = _Z**2 / self.of
        middle = self.part + spread / 2
        half = _Z * math.sqrt(
            self.part * (1 - self.part) / self.of + spread / self.of / 4
        )
        return (middle - half) / (1 + spread), (middle + half) / (1 + spread)
