"""The runs of one trial: the step whole and in cuts of two parts, and what these make of each
quantity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.step.powers import power_of
from gpubalance.engine.step.trial import Ran, Trial
from gpubalance.results.decomposition import MEAN, OTHER

# How near the parts come to the whole: gradients, numbers, and states, which are differences of
# larger numbers.
_NEAR = {"gradient": 1e-4, "state": 1e-4, "": 1e-5}
_NEAR_IN_HALF = {"gradient": 5e-2, "": 5e-3}
_PLAINLY = 0.01  # of a quantity: no rounding or small constant beside a divisor
_RANDOM_CUTS = 4  # beside the two first ones, if a step has code of the user's
_BEYOND = 100  # times the whole's: what a part has that is divided by nearly nothing
_WINDOWS = 4  # of each size that are tried for numbers that are not finite


class Runs:
    """A trial's step whole, and in cuts of two parts: a quarter of the samples, and the rest.

    `chooses`: the step has code of the user's, which may choose among samples, and by chance from
    both parts of a cut as from the whole: so there are more cuts.
    """

    def __init__(self, trial: Trial, *, chooses: bool) -> None:
        self._trial = trial
        dtypes = {layer.compute_dtype for layer in trial.model._flatten_layers()}
        self._nearness = _NEAR_IN_HALF if dtypes & {"float16", "bfloat16"} else _NEAR
        cut = max(1, trial.count // 4)
        self._weights = cut / trial.count, 1 - cut / trial.count
        # Layers' states are those after a step, as they may begin with zeros. Metrics begin anew,
        # as in each epoch.
        start = trial.now()
        self._after = trial.run(slice(None), start).states
        self._states = self._after | {id(one): start[id(one)] for one, _ in trial.metrics}
        self._whole = trial.run(slice(None), self._states)
        self._alone = [self._size_of([one]) for one in range(trial.count)]
        # The first ones beside the rest, and those that weigh most, which a loss of the hardest
        # samples would tell.
        orders = [np.arange(trial.count), np.argsort(np.negative(self._alone), kind="stable")]
        if chooses:
            orders += [
                np.random.default_rng(seed).permutation(trial.count) for seed in range(_RANDOM_CUTS)
            ]
        self._cuts = [(order[:cut], order[cut:]) for order in orders]
        self._copies: list[Ran] = []
        self.run_parts(())

    def run_parts(self, exponents: tuple[int, ...]) -> None:
        """Runs the parts, in which what layers add to the loss has these exponents, as in
        `Verdict`.

        Their marks are [cut, …, 3], of the first parts and of the second ones.
        """
        self._given = self._states, self._whole.divisors, exponents
        self._parts = []
        for parts in zip(*self._cuts, strict=True):
            of_cuts = [self._trial.run(at, *self._given).marks for at in parts]
            self._parts.append(
                {name: np.stack([marks[name] for marks in of_cuts]) for name in of_cuts[0]}
            )

    def power(self, name: str) -> int | None:
        """The power with which the parts make a quantity of the whole; OTHER if there is none."""
        parts = [
            (weight, part[name]) for weight, part in zip(self._weights, self._parts, strict=True)
        ]
        return power_of(self._whole.marks[name], parts, self._near(name))

    def is_zero(self, name: str) -> bool:
        """Whether a quantity is 0 in the whole and in all parts."""
        return not any(np.any(marks[name][..., 0]) for marks in (self._whole.marks, *self._parts))

    def has_no_gradients(self) -> bool:
        """Whether there are weights, and all gradients of the whole are 0."""
        whole = self._whole.marks["gradient"]
        return bool(whole.size) and not whole.any()

    def adding_again(self) -> set[str]:
        """The states to which a part adds the same whatever they are."""
        at, (_, *others) = self._cuts[0][0], self._given
        again, first = self._trial.run(at, self._after, *others).marks, self._parts[0]
        return {
            name
            for name in again
            if name.startswith("state")
            and power_of(again[name], [(1.0, first[name][0])], self._near(name)) is not OTHER
        }

    def is_of_sum(self, name: str) -> bool:
        """Whether each copy of the samples adds as much: to a mean or a quotient of sums it adds
        nothing.
        """
        if not self._copies:
            self._copies = [
                self._trial.run(slice(None), self._states, copies=copies) for copies in (2, 3)
            ]
        once, twice, thrice = (ran.marks[name] for ran in (self._whole, *self._copies))
        first, second = twice - once, thrice - twice
        is_plain = np.abs(first[..., 1:]).max() > _PLAINLY * twice[..., 0].max()
        near = 2 * self._nearness["gradient"] * np.linalg.norm(thrice[..., 0])
        return bool(is_plain and np.all(np.abs(second - first)[..., 1:] <= near))

    def least(self) -> int:
        """The fewest samples of which all parts that were tried run, and are finite, where the
        whole is.

        What is not a mean may also not be far beyond the whole's: then it is divided by nearly
        nothing.
        """
        size, count = 1, self._trial.count
        names = [name for name in self._whole.marks if name.startswith(("gradient", "loss"))]
        is_mean = all(self.power(name) == MEAN for name in names)
        whole = _size(self._whole)
        most = np.inf if is_mean or not whole else _BEYOND**2 * whole
        sizes = self._alone if np.isfinite(whole) else [0.0]
        while size < count and not all(np.isfinite(one) and one <= most for one in sizes):
            size, last = 2 * size, count - 2 * size
            starts = range(0, last + 1, max(1, last // (_WINDOWS - 1)))
            sizes = [self._size_of(slice(at, at + size)) for at in starts]
        return size

    def _near(self, name: str) -> float:
        return self._nearness.get(name.partition(" ")[0], self._nearness[""])

    def _size_of(self, at: Any) -> float:
        """How much samples weigh: the norm of their losses and gradients.

        It is no number for too few samples, or an odd number of them, for what the step does.
        """
        try:
            return _size(self._trial.run(at, self._states, self._whole.divisors))
        except tf.errors.InvalidArgumentError:
            return np.nan


def _size(ran: Ran) -> float:
    of_loss = (
        marks[..., 0] for name, marks in ran.marks.items() if name.startswith(("gradient", "loss"))
    )
    return float(sum(np.sum(np.square(norms, dtype=float)) for norms in of_loss))
