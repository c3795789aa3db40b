"""The runs of a traced step, whole and in two parts; and how the parts make the whole.

Quantities are compared by their sketches: a norm, and two products with fixed random vectors (see
sums.py). Parts make a whole with the weight exponent p if the sum of weight**p times part is the
whole. A quantity's name begins with its kind: `gradient`, `loss 0`, `added 0`, `log accuracy`,
`state 1234`. A state's quantity is its change.
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

# The relative tolerance of a sum of parts, by the kind of quantity; "" stands for all others. A
# state's change is the difference of larger numbers, so its tolerance is larger.
_TOLERANCES = {"gradient": 1e-4, "state": 1e-4, "": 1e-5}
# The tolerance of what is computed in half precision, in spacings of its numbers.
_HALF_SPACINGS = 4
# The least tolerance of what is computed from outputs in half precision: parts of other sizes may
# round some of these outputs differently.
_FROM_HALF = 2.5e-4
# If a quantity is a sum, a copy of the samples adds more than this fraction of it. Less is rounding
# or comes from a small constant in a divisor.
_MIN_ADDED = 0.01
_RANDOM_CUTS = 4  # beside the first two, if a step has code of the user's
# A part whose norm is more than this many times the whole's is divided by nearly nothing.
_MAX_NORM_RATIO = 100
# This many runs measure rounding. Their median leaves out jumps that only few of them meet, such as
# a ReLU's near 0.
_PERTURBED_RUNS = 5
# Parts and the whole may differ by this many times that median. The median is about one standard
# deviation of terms that are perturbed by ε. Rounding moves a term by only 0.3 ε as a rule, but may
# move many terms in the same direction. In half precision more would hide what is no mean.
_TIMES_ROUNDING = 8
_TIMES_IN_HALF = 3
# Rounding that moves gradients by more than this many times their tolerance hides what they are:
# they cancel, or a loss chooses among samples that only rounding tells apart.
_MAX_ROUNDING = 30
# Gradients that are more than rounding change by less than this fraction if a part has one of these
# weights, whose products are rounded differently.
_MAX_CHANGE = 0.02
_WEIGHTS = (1.37, 0.71, 1.9)
# The search for numbers that are not finite tries about this many parts of each size.
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
        # Layers have their states after one step, as they may begin with zeros. Metrics have those
        # from before it, as at the start of each epoch.
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
        self._runs_of_copies: list[StepRun] = []  # see `is_of_sum`
        self.run_parts(exponents=())  # what layers add, as it is

    def run_parts(self, exponents: tuple[int, ...]) -> None:
        """Runs all parts.

        Each value that layers add is multiplied by the part's weight to the power of its exponent;
        all stay as they are if there are no exponents.
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
        """The exponent with which parts make a quantity of the whole; None if none is known."""
        exact = self._weight_exponents(name)
        if exact:
            return exact[0]
        if self.is_lost(name):
            return None
        return next(iter(self._weight_exponents(name, self._rounding(name))), None)

    def is_lost(self, name: str) -> bool:
        """Whether rounding hides what a quantity is.

        Gradients and losses are lost if an exponent fits only because their rounding is too large.
        Another quantity is lost if rounding lets it pass for a mean and for a sum.
        """
        if self._weight_exponents(name):
            return False
        rounding = self._rounding(name)
        weight_exponents = self._weight_exponents(name, rounding)
        if name.startswith(("gradient", "loss")) and weight_exponents:
            tolerance = max(self._tolerance(name), _TOLERANCES["gradient"])
            whole = np.linalg.norm(norms(self._whole.sketches[name]))
            return bool(np.linalg.norm(rounding) > _MAX_ROUNDING * tolerance * whole)
        return {MEAN, SUM} <= set(weight_exponents)

    def _weight_exponents(self, name: str, rounding: Any = 0.0) -> list[int]:
        """All exponents with which parts make the whole, if rounding may move it so far."""
        parts = []
        for part in (self._first, self._rest):
            parts.append((part.weight, part.sketches[name]))
        return matching_exponents(
            self._whole.sketches[name], parts, self._tolerance(name), rounding
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
        """Whether a quantity is finite in the whole and in all parts."""
        runs = (self._whole.sketches, self._first.sketches, self._rest.sketches)
        return all(
            bool(np.all(np.isfinite(norms(sketches[name])))) for sketches in runs
        )

    def is_finite(self) -> bool:
        """Whether the losses and gradients of all samples tried are finite."""
        return bool(np.isfinite(_magnitude(self._whole)))

    def has_no_gradients(self) -> bool:
        """Whether there are weights, and all gradients of the whole are 0."""
        whole = self._whole.sketches["gradient"]
        return bool(whole.size) and not whole.any()

    def has_lost_gradients(self) -> bool:
        """Whether gradients are no more than rounding, or rounding hides what they are."""
        whole = self._whole.sketches["gradient"]
        if self.is_lost("gradient"):
            return True
        return self._may_be_rounding() and bool(
            np.all(norms(whole) <= self._rounding("gradient"))
        )

    def _may_be_rounding(self) -> bool:
        """Whether the gradients change if they are rounded differently.

        This takes less time than to measure the rounding.
        """
        # A weight that multiplies finished gradients would not round them differently.
        if not self._step.is_scaled:
            return True
        whole = products(self._whole.sketches["gradient"])
        for weight in _WEIGHTS:
            sketches = self._step.run(self._states, weight=weight).sketches["gradient"]
            change = np.linalg.norm(products(sketches) - whole)
            # A change of NaN counts too.
            if not change <= _MAX_CHANGE * np.linalg.norm(whole):
                return True
        return False

    def adding_states(self) -> set[str]:
        """The names of states whose change by a part does not depend on what metrics held before.

        A metric's state among them only adds up; a layer's is always among them.
        """
        cut = 0  # one cut shows it
        # Only the metrics' states differ from those with which the other parts ran.
        from_later_metrics = self._run_part(self._after, self._cuts[cut].first)
        adding = set()
        for name, sketches in from_later_metrics.items():
            if name.startswith("state"):
                from_fresh_metrics = self._first.sketches[name][cut]
                # One part of weight 1 must equal the whole, whatever the exponent.
                parts = [(1.0, from_fresh_metrics)]
                tolerance = self._tolerance(name)
                if matching_exponents(sketches, parts, tolerance) or matching_exponents(
                    sketches, parts, tolerance, self._rounding(name)
                ):
                    adding.add(name)
        return adding

    def is_of_sum(self, name: str) -> bool:
        """Whether a quantity sums over samples: a second and a third copy of them add the same.

        To a mean or a quotient of sums a copy adds nothing; with a constant in the divisor, a third
        one adds less than a second.
        """
        if not self._runs_of_copies:
            for copies in (2, 3):
                run = self._step.run(self._states, copies=copies)
                self._runs_of_copies.append(run)
        once = self._whole.sketches[name]
        twice, thrice = [run.sketches[name] for run in self._runs_of_copies]
        second_adds = products(twice - once)
        third_adds = products(thrice - twice)
        some_is_added = np.abs(second_adds).max() > _MIN_ADDED * norms(twice).max()
        # Twice the tolerance, as both are differences of larger numbers.
        tolerance = 2 * max(_TOLERANCES["gradient"], self._tolerance(name))
        is_same = np.all(
            np.abs(third_adds - second_adds)
            <= tolerance * np.linalg.norm(norms(thrice))
        )
        return bool(some_is_added and is_same)

    def minimum(self) -> int:
        """The fewest samples, doubled from 1, with which each tried part runs and is finite.

        If a loss is no mean, no part may be far larger than the whole either: such a part is
        divided by nearly nothing. 1 if not even the whole is finite.
        """
        count = self._step.count
        whole = _magnitude(self._whole)
        if not self.is_finite():
            return 1
        maximum = np.inf
        is_mean = all(
            self.weight_exponent(name) == MEAN for name in _loss_names(self._whole)
        )
        if whole and not is_mean:
            maximum = _MAX_NORM_RATIO**2 * whole  # a magnitude is a squared norm
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

    def _tolerance(self, name: str) -> float:
        """How far the sum of parts may be from the whole, relative to the larger norm."""
        kind = name.partition(" ")[0]
        of_kind = _TOLERANCES.get(kind, _TOLERANCES[""])
        tolerance = max(of_kind, _HALF_SPACINGS * self._spacing(name))
        if self._spacing("gradient"):
            tolerance = max(tolerance, _FROM_HALF)
        return tolerance

    def _spacing(self, name: str) -> float:
        """The largest ε of the half-precision dtypes that round a quantity; 0 if none does."""
        return max(
            SPACINGS[dtype] if dtype in HALF else 0.0
            for dtype in self._step.dtypes[name]
        )

    def _rounding(self, name: str) -> Any:
        """How far rounding may move a quantity; an array for the gradients.

        It depends on the size of what is summed, not on that of the result: see rounding.py.
        """
        moved = []
        for sketches in self._perturbed:
            by_products = np.abs(products(sketches[name] - self._whole.sketches[name]))
            moved.append(by_products.max(axis=-1))
        times = _TIMES_IN_HALF if self._spacing(name) else _TIMES_ROUNDING
        rounding = times * np.median(moved, axis=0)
        # Gradients are computed from the same numbers, so a gradient may have others' rounding.
        rounding = rounding + FRACTION_OF_ALL * np.linalg.norm(rounding)
        kind, _, key = name.partition(" ")
        if kind == "state":
            # A state in half precision may change by little more than its rounding.
            value = tf.cast(self._whole.states[int(key)], tf.float32)
            rounding = max(rounding, self._spacing(name) * float(tf.norm(value)))
        return rounding

    @cached_property
    def _perturbed(self) -> list[dict[str, Any]]:
        """The whole's sketches, in each perturbed run; takes about as long as a trace."""
        runs = [
            self._step.run(self._states, seed=seed) for seed in range(_PERTURBED_RUNS)
        ]
        return [run.sketches for run in runs]

    def _magnitude_of(self, places: Any) -> float:
        """The squared norm of the losses and gradients of these samples.

        NaN if the step can't run with these samples: too few, or an odd number.
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
    # The largest magnitudes first, so that a loss of only the hardest samples shows.
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


def _loss_names(run: StepRun) -> list[str]:
    """The names of the losses and of the gradients."""
    return [name for name in run.sketches if name.startswith(("gradient", "loss"))]


def _are_sound(magnitudes: Sequence[float], maximum: float) -> bool:
    return all(
        np.isfinite(magnitude) and magnitude <= maximum for magnitude in magnitudes
    )


def _magnitude(run: StepRun) -> float:
    total = 0.0
    for name in _loss_names(run):
        total += np.sum(np.square(norms(run.sketches[name]), dtype=float))
    return float(total)
