"""The runs of a traced step, whole and in two parts; and how the parts make the whole.

Quantities are compared by their sketches: a norm, and two products with fixed random vectors (see
sums.py). Parts make a whole with the power p if the sum of weight**p times part is the whole. A
quantity's name begins with its kind: `gradient`, `loss 0`, `added 0`, `log accuracy`, `state 1234`.
A state's quantity is its change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpubalance.engine.step.rounding import HALF, SPACINGS
from gpubalance.engine.step.sums import (
    FRACTION_OF_ALL,
    matching_exponents,
    norms,
    products,
)
from gpubalance.engine.step.traced_step import StepRun, TracedStep
from gpubalance.results.combine_rules import MEAN, SUM

# How near the parts must come to the whole, by the kind of quantity; "" stands for all others.
# Changes of states are differences of larger numbers.
_NEAR = {"gradient": 1e-4, "state": 1e-4, "": 1e-5}
# What is computed in half precision comes as near as so many spacings of its numbers.
_IN_HALF = 4
# So near comes what is computed from outputs of half: parts of other sizes may round some of them
# another way.
_FROM_HALF = 2.5e-4
# If a quantity is a sum, a copy of the samples adds more than this fraction of it. Less is rounding
# or comes of a small constant beside a divisor.
_LEAST_ADDED = 0.01
_RANDOM_CUTS = 4  # beside the two first ones, if a step has code of the user's
# A part whose norm is more than this many times the whole's is divided by nearly nothing.
_BEYOND = 100
# So many runs measure rounding. Their median has no jumps, as of a ReLU near 0, which few of them
# meet.
_PERTURBED_RUNS = 5
# Parts and the whole may be apart by this many times that median, which is about the standard
# deviation where terms are perturbed by ε. Rounding is 0.3 ε as a rule, but that of many terms may
# have one cause. In half precision more would hide what is no mean.
_TIMES_ROUNDING = 8
_TIMES_IN_HALF = 3
# Rounding that moves gradients by this many times as much as parts may differ hides what they are:
# they cancel, or a loss chooses among samples that only rounding tells apart.
_LARGEST_ROUNDING = 30
# Gradients that are more than rounding change by less than this fraction with other weights, whose
# products are rounded in other ways.
_LARGEST_CHANGE = 0.02
_WEIGHTS = (1.37, 0.71, 1.9)
# Of each number of samples, parts that begin at about so many places are tried, in search of
# numbers that are not finite.
_STARTS = 4


class TwoParts(NamedTuple):
    """The places of the samples of two parts, which make the whole."""

    first: Any
    rest: Any


class PartSketches(NamedTuple):
    """A part's weight, and by name each quantity's sketches in all cuts: [cut, …, 3]."""

    weight: float
    sketches: dict[str, Any]


class Runs:
    """A traced step run whole, and cut in two parts: a quarter of the samples, and the rest.

    `may_choose_samples`: the step has code of the user's, which may choose among samples, so one
    cut may look right by chance, and more are tried.
    """

    def __init__(self, step: TracedStep, *, may_choose_samples: bool) -> None:
        self._step = step
        # States are those after one step, as layers' may begin as zeros; but metrics' are those
        # before it, as in each epoch.
        start = step.states()
        self._after = step.run(start).states
        self._states = dict(self._after)
        for variable, _ in step.metric_variables:
            self._states[id(variable)] = start[id(variable)]
        self._whole = step.run(self._states)
        self._magnitudes_alone = [
            self._magnitude_of([place]) for place in range(step.count)
        ]
        first = max(1, step.count // 4)
        self._first_weight = first / step.count
        self._cuts: list[TwoParts] = []
        for order in _orders(
            self._magnitudes_alone, may_choose_samples=may_choose_samples
        ):
            self._cuts.append(TwoParts(order[:first], order[first:]))
        self._of_copies: list[StepRun] = []
        self.run_parts(exponents=())  # what layers add, as it is

    def run_parts(self, exponents: tuple[int, ...]) -> None:
        """Runs all parts.

        What layers add is multiplied by the part's weight to the power of these exponents, each
        value by its own; it stays as it is if there are none.
        """
        self._exponents = exponents
        first_parts = []
        rests = []
        for cut in self._cuts:
            first_parts.append(self._run_part(self._states, cut.first))
            rests.append(self._run_part(self._states, cut.rest))
        self._first = PartSketches(self._first_weight, _stacked(first_parts))
        self._rest = PartSketches(1 - self._first_weight, _stacked(rests))

    def _run_part(self, states: dict[int, Any], places: Any) -> dict[str, Any]:
        """The sketches of a part."""
        divisors = self._whole.divisors
        return self._step.run(
            states, places, divisors=divisors, exponents=self._exponents
        ).sketches

    def weight_exponent(self, name: str) -> int | None:
        """The power with which the parts make a quantity of the whole; None if none is known."""
        exact = self._weight_exponents(name)
        if exact:
            return exact[0]
        if self.is_lost(name):
            return None
        return next(iter(self._weight_exponents(name, self._rounding(name))), None)

    def is_lost(self, name: str) -> bool:
        """Whether rounding hides which of the two a quantity is, a mean or a sum.

        That of gradients and losses may also be so large that they could be neither.
        """
        if self._weight_exponents(name):
            return False
        rounding = self._rounding(name)
        weight_exponents = self._weight_exponents(name, rounding)
        if name.startswith(("gradient", "loss")) and weight_exponents:
            largest = _LARGEST_ROUNDING * max(self._near(name), _NEAR["gradient"])
            whole = np.linalg.norm(norms(self._whole.sketches[name]))
            return bool(np.linalg.norm(rounding) > largest * whole)
        return {MEAN, SUM} <= set(weight_exponents)

    def _weight_exponents(self, name: str, rounding: Any = 0.0) -> list[int]:
        parts = []
        for part in (self._first, self._rest):
            parts.append((part.weight, part.sketches[name]))
        return matching_exponents(
            self._whole.sketches[name], parts, self._near(name), rounding
        )

    def is_zero(self, name: str) -> bool:
        """Whether a quantity is 0 in the whole and in all parts."""
        for sketches in (
            self._whole.sketches,
            self._first.sketches,
            self._rest.sketches,
        ):
            if np.any(norms(sketches[name])):
                return False
        return True

    def has_finite(self, name: str) -> bool:
        """Whether a quantity is a number in the whole and in all parts."""
        runs = (self._whole.sketches, self._first.sketches, self._rest.sketches)
        return all(
            bool(np.all(np.isfinite(norms(sketches[name])))) for sketches in runs
        )

    def is_finite(self) -> bool:
        """Whether the losses and gradients of all samples tried are numbers."""
        return bool(np.isfinite(_magnitude(self._whole)))

    def has_no_gradients(self) -> bool:
        """Whether there are weights, and all gradients of the whole are 0."""
        whole = self._whole.sketches["gradient"]
        return bool(whole.size) and not whole.any()

    def has_lost_gradients(self) -> bool:
        """Whether gradients are no more than rounding, or it hides what they are."""
        whole = self._whole.sketches["gradient"]
        if self.is_lost("gradient"):
            return True
        return self._may_be_rounding() and bool(
            np.all(norms(whole) <= self._rounding("gradient"))
        )

    def _may_be_rounding(self) -> bool:
        """Whether the gradients change if they are rounded in another way.

        To find that out takes less than to measure the rounding.
        """
        if (
            not self._step.is_scaled
        ):  # the weight would multiply gradients when they are computed
            return True
        whole = products(self._whole.sketches["gradient"])
        for weight in _WEIGHTS:
            sketches = self._step.run(self._states, weight=weight).sketches["gradient"]
            change = np.linalg.norm(products(sketches) - whole)
            # What is not a number may be anything.
            if not change <= _LARGEST_CHANGE * np.linalg.norm(whole):
                return True
        return False

    def adding_states(self) -> set[str]:
        """The names of states whose change by a part does not depend on what metrics held before.

        A metric's state among them only adds up; a layer's is always among them.
        """
        cut = 0  # one of them shows it
        # These states differ from those of the other parts in what metrics hold only.
        from_later_metrics = self._run_part(self._after, self._cuts[cut].first)
        adding = set()
        for name, sketches in from_later_metrics.items():
            if name.startswith("state"):
                anew = self._first.sketches[name][cut]
                # It only compares: one part of weight 1 is the whole, whatever the power.
                parts = [(1.0, anew)]
                near = self._near(name)
                if matching_exponents(sketches, parts, near) or matching_exponents(
                    sketches, parts, near, self._rounding(name)
                ):
                    adding.add(name)
        return adding

    def is_of_sum(self, name: str) -> bool:
        """Whether it sums over samples: a second and a third copy of them add the same.

        To a mean or a quotient of sums a copy adds nothing; with a constant in the divisor, a third
        one adds less than a second.
        """
        if not self._of_copies:
            for copies in (2, 3):
                self._of_copies.append(self._step.run(self._states, copies=copies))
        once = self._whole.sketches[name]
        twice, thrice = [run.sketches[name] for run in self._of_copies]
        second_adds = products(twice - once)
        third_adds = products(thrice - twice)
        some_is_added = np.abs(second_adds).max() > _LEAST_ADDED * norms(twice).max()
        # Both are differences of larger numbers, each as near as a gradient comes: so twice that.
        near = 2 * max(_NEAR["gradient"], self._near(name))
        is_same = np.all(
            np.abs(third_adds - second_adds) <= near * np.linalg.norm(norms(thrice))
        )
        return bool(some_is_added and is_same)

    def minimum(self) -> int:
        """The fewest samples, doubled from 1, with which each tried part runs and is finite.

        If a loss is no mean, a part may also not be far beyond the whole: then it is divided by
        nearly nothing. 1 if not even the whole is finite.
        """
        count = self._step.count
        whole = _magnitude(self._whole)
        if not self.is_finite():
            return 1
        maximum = np.inf
        is_mean = all(
            self.weight_exponent(name) == MEAN for name in _losses(self._whole)
        )
        if whole and not is_mean:
            maximum = _BEYOND**2 * whole  # a magnitude is a squared norm
        magnitudes = self._magnitudes_alone
        samples = 1
        while samples < count and not _are_sound(magnitudes, maximum):
            samples = min(2 * samples, count)
            last = count - samples
            starts = range(0, last + 1, max(1, last // (_STARTS - 1)))
            magnitudes = [
                self._magnitude_of(slice(start, start + samples)) for start in starts
            ]
        return samples

    def _near(self, name: str) -> float:
        kind = name.partition(" ")[0]
        near = max(_NEAR.get(kind, _NEAR[""]), _IN_HALF * self._spacing(name))
        if self._spacing("gradient"):
            near = max(near, _FROM_HALF)
        return near

    def _spacing(self, name: str) -> float:
        """The distance of 1 to the next number in what rounds a quantity; 0 if not in half."""
        return max(
            SPACINGS[dtype] if dtype in HALF else 0.0
            for dtype in self._step.dtypes[name]
        )

    def _rounding(self, name: str) -> Any:
        """How far rounding may move a quantity; an array for the gradients.

        That follows from the size of what is summed, not of the result: see rounding.py.
        """
        moved = []
        for sketches in self._perturbed:
            by_products = np.abs(products(sketches[name] - self._whole.sketches[name]))
            moved.append(by_products.max(axis=-1))
        times = _TIMES_IN_HALF if self._spacing(name) else _TIMES_ROUNDING
        rounding = times * np.median(moved, axis=0)
        # What a gradient is computed from is rounded for others too.
        rounding = rounding + FRACTION_OF_ALL * np.linalg.norm(rounding)
        kind, _, key = name.partition(" ")
        if kind == "state":
            # It may be computed in half precision, and change by little more than rounding.
            value = tf.cast(self._whole.states[int(key)], tf.float32)
            rounding = max(rounding, self._spacing(name) * float(tf.norm(value)))
        return rounding

    @cached_property
    def _perturbed(self) -> list[dict[str, Any]]:
        """The sketches of the whole with all terms perturbed; takes about as long as a trace."""
        runs = [
            self._step.run(self._states, seed=seed) for seed in range(_PERTURBED_RUNS)
        ]
        return [run.sketches for run in runs]

    def _magnitude_of(self, places: Any) -> float:
        """How much samples weigh: the squared norm of their losses and gradients.

        It is no number if the step can't run with these samples: too few, or an odd number.
        """
        try:
            return _magnitude(
                self._step.run(self._states, places, divisors=self._whole.divisors)
            )
        except tf.errors.InvalidArgumentError:
            return np.nan


def _orders(magnitudes: Sequence[float], *, may_choose_samples: bool) -> list[Any]:
    """Orders of the samples: each is cut in its first ones and the rest."""
    orders = [np.arange(len(magnitudes))]
    # Those that weigh most first, so that a loss of only the hardest samples shows.
    orders.append(np.argsort(np.negative(magnitudes), kind="stable"))
    if may_choose_samples:
        for seed in range(_RANDOM_CUTS):
            orders.append(np.random.default_rng(seed).permutation(len(magnitudes)))
    return orders


def _stacked(cuts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By name the sketches of all cuts in one array."""
    stacked = {}
    for name in cuts[0]:
        stacked[name] = np.stack([sketches[name] for sketches in cuts])
    return stacked


def _losses(run: StepRun) -> list[str]:
    """The names of losses, and of their gradients."""
    return [name for name in run.sketches if name.startswith(("gradient", "loss"))]


def _are_sound(magnitudes: Sequence[float], maximum: float) -> bool:
    return all(
        np.isfinite(magnitude) and magnitude <= maximum for magnitude in magnitudes
    )


def _magnitude(run: StepRun) -> float:
    total = 0.0
    for name in _losses(run):
        total += np.sum(np.square(norms(run.sketches[name]), dtype=float))
    return float(total)
