"""The runs of a traced step, whole and in two parts; and how the parts make the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.step.marks import norms, power_of, products
from gpubalance.engine.step.traced_step import StepRun, TracedStep
from gpubalance.results.decomposition import MEAN

# How near the parts come to the whole: gradients, states, which are differences of larger numbers,
# and other numbers.
_NEAR = {"gradient": 1e-4, "state": 1e-4, "": 1e-5}
_NEAR_IN_HALF = {"gradient": 5e-2, "": 5e-3}
_PLAINLY = 0.01  # of a quantity: no rounding or small constant beside a divisor
_RANDOM_CUTS = 4  # beside the two first ones, if a step has code of the user's
_BEYOND = 100  # times the whole's: what a part has that is divided by nearly nothing
_WINDOWS = 4  # of each size that are tried for numbers that are not finite


class Runs:
    """A traced step run whole, and cut in two parts: a quarter of the samples, and the rest.

    `chooses`: the step has code of the user's, which may choose among samples, and by chance from
    both parts of a cut as from the whole: so there are more cuts.
    """

    def __init__(self, step: TracedStep, *, chooses: bool) -> None:
        self._step = step
        dtypes = {layer.compute_dtype for layer in step.model._flatten_layers()}
        self._nearness = _NEAR_IN_HALF if dtypes & {"float16", "bfloat16"} else _NEAR
        # Layers' states are those after a step, as they may begin with zeros. Metrics begin anew,
        # as in each epoch.
        start = step.states()
        self._after = step.run(start).states
        self._states = dict(self._after)
        for variable, _ in step.of_metrics:
            self._states[id(variable)] = start[id(variable)]
        self._whole = step.run(self._states)
        self._sizes_alone = [self._size_of([place]) for place in range(step.count)]
        first = max(1, step.count // 4)
        self._first_weight = first / step.count
        orders = _orders(self._sizes_alone, chooses=chooses)
        self._cuts = [(order[:first], order[first:]) for order in orders]
        self._of_copies: list[StepRun] = []
        self.run_parts(())

    def run_parts(self, exponents: tuple[int, ...]) -> None:
        """Runs all parts. What layers add has these exponents, as in `Decomposition`."""
        self._exponents = exponents
        first_parts = []
        rests = []
        for first, rest in self._cuts:
            first_parts.append(self._run_part(self._states, first))
            rests.append(self._run_part(self._states, rest))
        weight = self._first_weight
        # The weight and, by name, the marks [cut, …, 3].
        self._parts = [(weight, _stacked(first_parts)), (1 - weight, _stacked(rests))]

    def _run_part(self, states: dict[int, Any], places: Any) -> dict[str, Any]:
        """The marks of a part."""
        divisors = self._whole.divisors
        return self._step.run(states, places, divisors=divisors, exponents=self._exponents).marks

    def power(self, name: str) -> int | None:
        """The power with which the parts make a quantity of the whole; None if none does."""
        parts = [(weight, marks[name]) for weight, marks in self._parts]
        return power_of(self._whole.marks[name], parts, self._near(name))

    def is_zero(self, name: str) -> bool:
        """Whether a quantity is 0 in the whole and in all parts."""
        if np.any(norms(self._whole.marks[name])):
            return False
        return not any(np.any(norms(marks[name])) for _, marks in self._parts)

    def has_no_gradients(self) -> bool:
        """Whether there are weights, and all gradients of the whole are 0."""
        whole = self._whole.marks["gradient"]
        return bool(whole.size) and not whole.any()

    def adding_states(self) -> set[str]:
        """The names of the states to which a part adds the same whatever they are."""
        from_others = self._run_part(self._after, self._cuts[0][0])
        _, first_parts = self._parts[0]
        adding = set()
        for name, marks in from_others.items():
            is_state = name.startswith("state")
            if is_state and _agree(marks, first_parts[name][0], self._near(name)):
                adding.add(name)
        return adding

    def is_of_sum(self, name: str) -> bool:
        """Whether each copy of the samples adds as much.

        To a mean or a quotient of sums a copy adds nothing.
        """
        if not self._of_copies:
            self._of_copies = [self._step.run(self._states, copies=copies) for copies in (2, 3)]
        once = self._whole.marks[name]
        twice, thrice = [run.marks[name] for run in self._of_copies]
        by_second = products(twice - once)
        by_third = products(thrice - twice)
        is_plain = np.abs(by_second).max() > _PLAINLY * norms(twice).max()
        near = 2 * self._nearness["gradient"] * np.linalg.norm(norms(thrice))
        return bool(is_plain and np.all(np.abs(by_third - by_second) <= near))

    def least(self) -> int:
        """The fewest samples of which all parts tried run, and are finite where the whole is.

        What is not a mean may also not be far beyond the whole's: then it is divided by nearly
        nothing.
        """
        count = self._step.count
        whole = _size(self._whole)
        most = np.inf
        if whole and not all(self.power(name) == MEAN for name in _losses(self._whole)):
            most = _BEYOND**2 * whole
        sizes = self._sizes_alone if np.isfinite(whole) else [0.0]
        samples = 1
        while samples < count and not all(np.isfinite(size) and size <= most for size in sizes):
            samples *= 2
            last = count - samples
            starts = range(0, last + 1, max(1, last // (_WINDOWS - 1)))
            sizes = [self._size_of(slice(start, start + samples)) for start in starts]
        return samples

    def _near(self, name: str) -> float:
        kind = name.partition(" ")[0]
        return self._nearness.get(kind, self._nearness[""])

    def _size_of(self, places: Any) -> float:
        """How much samples weigh: the squared norm of their losses and gradients.

        It is no number if the step can't run with these samples: too few, or an odd number.
        """
        try:
            return _size(self._step.run(self._states, places, divisors=self._whole.divisors))
        except tf.errors.InvalidArgumentError:
            return np.nan


def _orders(sizes: Sequence[float], *, chooses: bool) -> list[Any]:
    """Orders of the samples, which are cut after their first ones."""
    orders = [np.arange(len(sizes))]
    # Those that weigh most first, which a loss of the hardest samples would tell.
    orders.append(np.argsort(np.negative(sizes), kind="stable"))
    if chooses:
        for seed in range(_RANDOM_CUTS):
            orders.append(np.random.default_rng(seed).permutation(len(sizes)))
    return orders


def _stacked(cuts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By name the marks of all cuts in one array."""
    return {name: np.stack([marks[name] for marks in cuts]) for name in cuts[0]}


def _agree(some: Any, others: Any, near: float) -> bool:
    return power_of(some, [(1.0, others)], near) is not None


def _losses(run: StepRun) -> list[str]:
    """The names of losses, and of their gradients."""
    return [name for name in run.marks if name.startswith(("gradient", "loss"))]


def _size(run: StepRun) -> float:
    size = 0.0
    for name in _losses(run):
        size += np.sum(np.square(norms(run.marks[name]), dtype=float))
    return float(size)
