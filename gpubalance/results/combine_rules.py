"""What the parity check found: how each quantity of a batch is made from those of its parts.

A part with the weight w, its share of the samples, has q where the whole batch has Q. Then Q = Σ wᵖ
q for some power p: 1 for a mean over samples and for what all parts have alike, 0 for a sum, 2 for
a mean that is divided by the samples once more. Otherwise the parts don't tell Q.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gpubalance.errors import BadInput
from gpubalance.results.common import Refusal
from gpubalance.settings.record import Record

# The powers with which parts may make the whole.
SUM = 0
MEAN = 1
MEAN_AGAIN = 2  # a mean that is divided by the samples once more
_HEAVY = ("BatchNorm", "Conv", "Einsum", "FFT", "MatMul", "Pool", "RNN", "While")


class CombineRules(Record):
    """The powers of a step's quantities, and what is said of it.

    `variables` has those of metrics and of layers' states by their place among those that may
    change, `logs` by name; what the parts don't tell has that of a mean or a sum, and a quantity
    that is not there was not met. What layers add to the loss is multiplied by the part's weight to
    the power of `exponents`, in order. A part of fewer samples than `minimum` may give what is not
    finite, or far beyond the whole's. `is_known`: the check could decide. `step` has the operations
    of the step by type and count. `warned_with_micro_batches` is said only of a split that has
    some.
    """

    variables: dict[int, int] = Field(default_factory=dict)
    logs: dict[str, int] = Field(default_factory=dict)
    exponents: tuple[int, ...] = ()
    warned: tuple[str, ...] = ()
    warned_with_micro_batches: tuple[str, ...] = ()
    refused: Refusal | None = None
    minimum: int = 1
    is_known: bool = True
    step: dict[str, int] = Field(default_factory=dict)

    def exponent(self, place: int) -> int:
        """The exponent for what is added to the loss in this place."""
        return self.exponents[place] if place < len(self.exponents) else 0

    def refuse_small(self, smallest: int, model: Any) -> None:
        """Raises BadInput if the smallest part of a batch has too few samples for a finite loss."""
        if smallest < self.minimum:
            raise BadInput(
                f"{smallest} samples are too few for a part of a batch: the model "
                f"{model.name} fails, or gives gradients or a loss that are not "
                "finite or far beyond the whole batch's. Something in it divides by "
                "the part's variance, count or sum, or needs more samples",
                remedy=f"give each device at least {self.minimum} samples per step",
            )

    @property
    def fingerprint(self) -> tuple[tuple[str, int], ...] | None:
        """How often the step has each operation that takes long, and `others`; None if untried."""
        if not self.step:
            return None
        counts: list[tuple[str, int]] = []
        others = 0
        for operation, count in sorted(self.step.items()):
            if any(kind in operation for kind in _HEAVY):
                counts.append((operation, count))
            else:
                others += count
        return (*counts, ("others", others))


UNTRIED = CombineRules()
