"""The parity check: a step in unequal parts beside the same step whole, compared by numbers.

Each quantity tells by itself how the parts make the whole (see `verdict.py`), and the step then combines it in that
way. What no power makes is told, and what a split can't train is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_inside import function_of, is_keras_own, name_of, users_parts
from gpubalance.engine.sources import is_sum, reaches
from gpubalance.engine.step import built
from gpubalance.engine.step.logs import NOT_FROM_PARTS, told_of_log
from gpubalance.engine.step.part import Added, Reduced
from gpubalance.engine.step.trial import Ran, Trial
from gpubalance.engine.step.verdict import MEAN, OTHER, SUM, Verdict, power_of
from gpubalance.engine.users_lines import reason_of
from gpubalance.errors import BadInput
from gpubalance.results.common import Refusal

TRIED = 16  # samples, of which a quarter is one part
# How near the parts come to the whole: gradients, numbers, and states, which are differences of larger numbers.
_NEAR = {"gradient": 1e-4, "state": 1e-4, "": 1e-5}
_NEAR_IN_HALF = {"gradient": 5e-2, "": 5e-3}
_PLAINLY = 0.01  # of a quantity: no rounding or small constant beside a divisor
_ORDERS = 4  # of the samples that are cut beside the two first ones, if a step has code of the user's
_BEYOND = 100  # times the whole's: what a part has that is divided by nearly nothing
_WINDOWS = 4  # of each size that are tried for numbers that are not finite
_UNKNOWN = "so it is not known whether it takes a mean over samples, as a split needs"
_IS_A_MEAN = "which is taken for a mean when a batch is divided (a sum divided by a fixed number is one, too)"
_UNLIKE = (
    "takes gradients that are not a mean over samples: they are clipped, or something is computed from the batch as a "
    "whole. A split adds up the gradients of a batch's parts, so the result is not exactly that of one device"
)
NEITHER = (
    "not a mean over samples: the losses of a batch's parts are averaged, weighted by samples, so the result is not "
    "exactly that of one device"
)
_DIVIDED = (
    "is divided by a sum or a mean over the batch, as of weights or a mask: a split divides each part's loss by that "
    "of the part, so the result is not exactly that of one device"
)


def check(model: Any, batch: Any, device: str, *, share: int = TRIED, trains: bool = True) -> Verdict:
    """How a step's quantities are made from parts, and what a split does not train exactly, or can't.

    `batch` is one as the step takes it, of which up to 16 samples are tried, at most a device's `share`, but two at
    least. A step that fails for these alone has a verdict that is not known, and says so.
    """
    exact = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        told = built.check(model, trains=trains)
        found = _tried(model, batch, device, min(TRIED, max(2, share)), trains=trains)
    except BadInput as error:
        return Verdict(refused=Refusal(message=error.message, remedy=error.remedy))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(exact)
        gc.collect()  # a graph refers to itself, and TensorFlow keeps constants as large as the weights for this one's
    return replace(found, warned=(*told, *found.warned))


def _tried(model: Any, batch: Any, device: str, count: int, *, trains: bool) -> Verdict:
    own = users_parts(model)
    step = f"the train_step of the model {model.name}"
    if is_keras_own(type(model).train_step):
        step = f"training the model {model.name}" + (f" (your own code: {', '.join(own)})" if own else "")
    try:
        return _Check(Trial(model, batch, device, count, trains=trains), step, own).verdict()
    except BadInput:
        raise
    except tf.errors.ResourceExhaustedError:
        if count > 2:
            return _tried(model, batch, device, max(2, count // 2), trains=trains)
        failed = "two samples for want of memory"
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises for these samples; training may not
        failed = f"a few samples ({reason_of(error)})"
    return Verdict(warned=(f"{step} can't be tried on {failed}: {_UNKNOWN}",), is_known=False)


def can_run(model: Any, batch: Any, strategy: Any, device: str) -> bool:
    """Whether the `train_step` runs with such samples, if a split can train it at all."""
    try:
        built.build(model, strategy, tf.nest.map_structure(tf.convert_to_tensor, batch), trains=True)
        trial = Trial(model, batch, device, TRIED, trains=True)
        trial.run(slice(None), trial.now())
    except BadInput:
        return True
    except Exception:  # noqa: BLE001 - whatever Keras or the user's code raises for labels of another shape
        return False
    return True


class _Check:
    """The runs of one trial, and what they tell."""

    def __init__(self, trial: Trial, step: str, own: list[str]) -> None:
        self._trial, self._step, self._own = trial, step, own
        dtypes = {layer.compute_dtype for layer in trial.model._flatten_layers()}
        self._nearness = _NEAR_IN_HALF if dtypes & {"float16", "bfloat16"} else _NEAR
        cut = max(1, trial.count // 4)
        self._weights = cut / trial.count, 1 - cut / trial.count
        # Layers' states are those after a step, as they may begin with zeros. Metrics begin anew, as in each epoch.
        start = trial.now()
        self._after = trial.run(slice(None), start).states
        self._states = self._after | {id(one): start[id(one)] for one, _ in trial.metrics}
        self._whole = trial.run(slice(None), self._states)
        self._alone = [self._size_of([one]) for one in range(trial.count)]
        # The first ones beside the rest, and those that weigh most, which a loss of the hardest samples would tell.
        orders = [np.arange(trial.count), np.argsort(np.negative(self._alone), kind="stable")]
        if own or not _is_keras_own_step(trial):  # what chooses among samples may choose from each part of a cut alike
            orders += [np.random.default_rng(seed).permutation(trial.count) for seed in range(_ORDERS)]
        self._cuts = [(order[:cut], order[cut:]) for order in orders]
        self._exponents: tuple[int, ...] = ()
        self._parts = self._run_parts()
        self._copies: list[Ran] = []
        self._told, self._is_known = list(trial.probing.told), True

    def _size_of(self, at: Any) -> float:
        """How much samples weigh: the norm of their losses and gradients.

        It is no number for too few samples, or an odd number of them, for what the step does.
        """
        try:
            return _size(self._trial.run(at, self._states, self._whole.divisors))
        except tf.errors.InvalidArgumentError:
            return np.nan

    def _run_parts(self) -> list[dict[str, Any]]:
        """The marks [cut, …, 3] of the first parts, and of the second ones."""
        given = self._states, self._whole.divisors, self._exponents
        of_parts = ([self._trial.run(at, *given).marks for at in parts] for parts in zip(*self._cuts, strict=True))
        return [{name: np.stack([marks[name] for marks in of_cuts]) for name in of_cuts[0]} for of_cuts in of_parts]

    def verdict(self) -> Verdict:
        """What the runs tell. Raises BadInput for what a split can't train."""
        trial = self._trial
        self._exponents = tuple(self._of_added(*one) for one in enumerate(trial.probing.added))
        if any(self._exponents):
            self._parts = self._run_parts()
        for place, reduced in enumerate(trial.probing.losses):
            self._of_loss(f"loss {place}", reduced)
        self._is_known &= not any(map(self._is_zero, self._of_users_metrics()))
        if trial.trains:
            self._of_gradients()
        return Verdict(
            variables=self._of_metrics() | self._of_layers(),
            logs={name: self._of_log(name) for name in trial.logs},
            exponents=self._exponents,
            warned=tuple(dict.fromkeys(self._told)),
            least=self._least(),
            is_known=self._is_known,
            step=trial.step,
        )

    def _of_users_metrics(self) -> Iterator[str]:
        """The names of the states of metrics with the user's code."""
        metrics = ((id(one), getattr(metric, "_fn", metric)) for one, metric in self._trial.metrics)
        return (f"state {key}" for key, made_of in metrics if key in self._trial.changed and not is_keras_own(made_of))

    def _near(self, name: str) -> float:
        return self._nearness.get(name.partition(" ")[0], self._nearness[""])

    def _power(self, name: str) -> int | None:
        parts = [(weight, part[name]) for weight, part in zip(self._weights, self._parts, strict=True)]
        return power_of(self._whole.marks[name], parts, self._near(name))

    def _is_zero(self, name: str) -> bool:
        return not any(np.any(marks[name][..., 0]) for marks in (self._whole.marks, *self._parts))

    def _of_added(self, place: int, added: Added) -> int:
        """The exponent of what a layer adds. Raises BadInput for a sum, which is taken for a mean."""
        name, is_number = f"added {place}", not added.loss.shape.rank
        power = self._power(name)
        if power == SUM and is_number and not added.is_regularizer:
            raise BadInput(
                f"the layer {added.layer} adds a sum over the batch to the loss: it is taken for a mean when a batch "
                "is divided",
                remedy="add_loss(ops.mean(loss)), or a value for each sample",
            )
        if is_number and self._is_zero(name):
            self._told.append(f"what the layer {added.layer} adds to the loss is 0 for the samples tried, {_UNKNOWN}")
            self._is_known = False
        return 0 if power is OTHER else power - MEAN + added.divided

    def _of_loss(self, name: str, reduced: Reduced) -> None:
        """Tells of one of Keras' losses or of those that are given to it. Raises BadInput for a sum."""
        what = f"the loss of the model {self._trial.model.name} ({name_of(reduced.loss)})"
        power = MEAN if reduced.result.shape.rank else self._power(name)
        if power == SUM or (power != MEAN and self._is_of_sum(name)):
            raise BadInput(
                f"{what} sums over the batch and returns one number, {_IS_A_MEAN}",
                remedy="return a value for each sample; keras.losses.Loss with reduction='sum' sums them",
            )
        is_own = not is_keras_own(function_of(reduced.loss))
        if power != MEAN and (is_own or not self._own):  # else it is what the user's own code gives to it
            self._told.append(f"{what} is {NEITHER}")
        elif is_own and self._is_zero(name):
            self._told.append(f"{what} is 0 for the samples tried, {_UNKNOWN}")

    def _of_gradients(self) -> None:
        """Tells of gradients that are not a mean, unless the reason is told. Raises BadInput for those of a sum."""
        power, whole = self._power("gradient"), self._whole.marks["gradient"]
        if whole.size and not whole.any():
            found, self._is_known = f"{self._step} has no gradients for the samples tried: {_UNKNOWN}", False
        elif power == SUM or (power != MEAN and not any(self._exponents) and self._is_of_sum("gradient")):
            raise BadInput(
                f"{self._step} takes the gradients of a sum over the batch, {_IS_A_MEAN}",
                remedy="take the mean over samples, or give self.optimizer.scale_loss a value for each sample",
            )
        elif power != MEAN:
            found = f"{self._step} {_UNLIKE}"
        else:
            found = f"the loss of the model {self._trial.model.name} {_DIVIDED}" if self._is_divided() else ""
        self._told += [found] if found and not self._told else []

    def _is_of_sum(self, name: str) -> bool:
        """Whether each copy of the samples adds as much: to a mean or a quotient of sums it adds nothing."""
        if not self._copies:
            self._copies = [self._trial.run(slice(None), self._states, copies=copies) for copies in (2, 3)]
        once, twice, thrice = (ran.marks[name] for ran in (self._whole, *self._copies))
        first, second = twice - once, thrice - twice
        is_plain = np.abs(first[..., 1:]).max() > _PLAINLY * twice[..., 0].max()
        near = 2 * self._nearness["gradient"] * np.linalg.norm(thrice[..., 0])
        return bool(is_plain and np.all(np.abs(second - first)[..., 1:] <= near))

    def _is_divided(self) -> bool:
        """Whether a loss is divided by what is computed from samples, which the tried ones may have alike by chance.

        Keras' own losses that do so are brought to their share of such a divisor, or are tried.
        """
        reduced, samples = self._trial.probing.losses, self._trial.samples
        results = {id(one.result) for one in reduced}
        own = [one.values for one in reduced if not is_keras_own(function_of(one.loss))]
        of_own = any(reaches(values, samples, results - {id(values)}) for values in own)
        return of_own or any(reaches(target, samples, results) for target in self._trial.probing.targets)

    def _of_layers(self) -> dict[int, int]:
        """The powers of variables that the user's layers change; tells what is not exact."""
        found = {}
        for variable, layer in self._trial.kept:
            key, name = id(variable), f"state {id(variable)}"
            if key not in self._trial.changed or is_keras_own(layer):
                continue
            power = self._power(name)
            found[key] = MEAN if power is OTHER else power
            if self._is_zero(name):
                self._told.append(
                    f"the layer {layer.name} changes {variable.name} by 0 for the samples tried, {_UNKNOWN}"
                )
            elif power is OTHER:
                self._told.append(
                    f"the layer {layer.name} updates {variable.name} from its samples to what is neither a mean nor a "
                    "sum over them: the devices' values are averaged, weighted by samples"
                )
        return found

    def _of_metrics(self) -> dict[int, int]:
        """The powers of metrics' variables; tells what is not exact. Others of a metric tell, as its count does."""
        changed = [pair for pair in self._trial.metrics if id(pair[0]) in self._trial.changed]
        # What it adds again, to what is not 0 any more.
        again = self._trial.run(self._cuts[0][0], self._after, self._whole.divisors, self._exponents).marks
        found, is_silent = dict[int, Any](), bool(self._told)
        for key, name in ((id(one), f"state {id(one)}") for one, _ in changed):
            if not self._is_zero(name):
                adds = power_of(again[name], [(1.0, self._parts[0][name][0])], self._near(name)) is not OTHER
                found[key] = self._power(name) if adds else OTHER
        for variable, metric in changed:
            key = id(variable)
            if found.get(key) is not OTHER:
                continue
            others = {found.get(id(one)) for one, owner in changed if owner is metric} - {OTHER}
            power = others.pop() if len(others) == 1 else SUM
            if key in found and not (is_silent and is_keras_own(metric)):
                self._told.append(
                    f"the metric {metric.name} does not only add to {variable.name} a mean or a sum over samples: the "
                    f"devices' values are {'averaged' if power == MEAN else 'summed'}, which is not what one device "
                    "would log"
                )
            found[key] = power
        return found

    def _of_log(self, name: str) -> int:
        """The power of a log; tells of one that is not exact."""
        if self._is_zero(f"log {name}"):  # as a count may be
            return SUM if is_sum(self._trial.logs[name]) else MEAN
        power = self._power(f"log {name}")
        if power is OTHER:
            self._told.append(told_of_log(self._trial.model, name, NOT_FROM_PARTS))
        return MEAN if power is OTHER else power

    def _least(self) -> int:
        """The fewest samples of which all parts that were tried run, and are finite, where the whole is.

        What is not a mean may also not be far beyond the whole's: then it is divided by nearly nothing.
        """
        size, count = 1, self._trial.count
        names = [name for name in self._whole.marks if name.startswith(("gradient", "loss"))]
        is_mean = all(self._power(name) == MEAN for name in names)
        whole = _size(self._whole)
        most = np.inf if is_mean or not whole else _BEYOND**2 * whole
        sizes = self._alone if np.isfinite(whole) else [0.0]
        while size < count and not all(np.isfinite(one) and one <= most for one in sizes):
            size, last = 2 * size, count - 2 * size
            starts = range(0, last + 1, max(1, last // (_WINDOWS - 1)))
            sizes = [self._size_of(slice(at, at + size)) for at in starts]
        return size


def _is_keras_own_step(trial: Trial) -> bool:
    losses = (function_of(one.loss) for one in trial.probing.losses)
    return all(map(is_keras_own, [type(trial.model).train_step, *losses]))


def _size(ran: Ran) -> float:
    of_loss = (marks[..., 0] for name, marks in ran.marks.items() if name.startswith(("gradient", "loss")))
    return float(sum(np.sum(np.square(norms, dtype=float)) for norms in of_loss))
