"""The batch limits that a search considers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """The possible batch limits, numbered from 1.

    Below `multiple` it is every batch, from there on its multiples.
    """

    multiple: int

    def batch(self, rung: int) -> int:
        """The batch of a rung; 0 for rung 0, below the first."""
        if rung < self.multiple:
            return rung
        return (rung - self.multiple + 1) * self.multiple

    def rung(self, batch: int) -> int:
        """The last rung at or below a batch, 0 if there is none."""
        if batch < self.multiple:
            return max(0, batch)
        return batch // self.multiple + self.multiple - 1

    def has(self, batch: int) -> bool:
        """Whether a batch is a rung."""
        return self.batch(self.rung(batch)) == batch
