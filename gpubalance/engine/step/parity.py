"""The parity check: a step in unequal parts beside the same step whole, compared by numbers.

Each quantity tells by itself how the parts make the whole, as a `Decomposition` has it, and the
step then combines it in that way. What no power makes is told, and what a split can't train is
refused.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from gpubalance.engine.keras_inside import function_of, is_keras_own, name_of, users_parts
from gpubalance.engine.sources import is_sum, reaches
from gpubalance.engine.step import built
from gpubalance.engine.step.logs import NOT_FROM_PARTS, told_of_log
from gpubalance.engine.step.part import Added, ReducedLoss
from gpubalance.engine.step.runs import Runs
from gpubalance.engine.step.state import changing_of
from gpubalance.engine.step.trial import Trial
from gpubalance.engine.users_lines import reason_of
from gpubalance.errors import BadInput
from gpubalance.results.common import Refusal
from gpubalance.results.decomposition import MEAN, OTHER, SUM, Decomposition

TRIED = 16  # samples, of which a quarter is one part
_UNKNOWN = "so it is not known whether it takes a mean over samples, as a split needs"
_IS_A_MEAN = (
    "which is taken for a mean when a batch is divided (a sum divided by a fixed number is one, "
    "too)"
)
_UNLIKE = (
    "takes gradients that are not a mean over samples: they are clipped, or something is "
    "computed from the batch as a "
    "whole. A split adds up the gradients of a batch's parts, so the result is not exactly "
    "that of one device"
)
NEITHER = (
    "not a mean over samples: the losses of a batch's parts are averaged, weighted by "
    "samples, so the result is not "
    "exactly that of one device"
)
_DIVIDED = (
    "is divided by a sum or a mean over the batch, as of weights or a mask: a split divides "
    "each part's loss by that "
    "of the part, so the result is not exactly that of one device"
)


def check(
    model: Any, batch: Any, device: str, *, share: int = TRIED, trains: bool = True
) -> Decomposition:
    """How a step's quantities are made from parts, and what a split does not train exactly, or
    can't.

    `batch` is one as the step takes it, of which up to 16 samples are tried, at most a device's
    `share`, but two at least. A step that fails for these alone has a verdict that is not known,
    and says so.
    """
    exact = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        told = built.check(model, trains=trains)
        found = _tried(model, batch, device, min(TRIED, max(2, share)), trains=trains)
    except BadInput as error:
        return Decomposition(refused=Refusal(message=error.message, remedy=error.remedy))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(exact)
        # A graph refers to itself, and TensorFlow keeps constants as large as the weights for this
        # one's.
        gc.collect()
    return found.model_copy(update={"warned": (*told, *found.warned)})


def _tried(model: Any, batch: Any, device: str, count: int, *, trains: bool) -> Decomposition:
    own = users_parts(model)
    step = f"the train_step of the model {model.name}"
    if is_keras_own(type(model).train_step):
        step = f"training the model {model.name}" + (
            f" (your own code: {', '.join(own)})" if own else ""
        )
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
    return Decomposition(warned=(f"{step} can't be tried on {failed}: {_UNKNOWN}",), is_known=False)


def can_run(model: Any, batch: Any, strategy: Any, device: str) -> bool:
    """Whether the `train_step` runs with such samples, if a split can train it at all."""
    try:
        built.build(
            model, strategy, tf.nest.map_structure(tf.convert_to_tensor, batch), trains=True
        )
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
        self._runs = Runs(trial, chooses=bool(own) or not _is_keras_own_step(trial))
        self._told, self._is_known = list(trial.probing.told), True

    def verdict(self) -> Decomposition:
        """What the runs tell. Raises BadInput for what a split can't train."""
        trial = self._trial
        exponents = tuple(self._of_added(*one) for one in enumerate(trial.probing.added))
        if any(exponents):
            self._runs.run_parts(exponents)
        for place, reduced in enumerate(trial.probing.losses):
            self._of_loss(f"loss {place}", reduced)
        self._is_known &= not any(map(self._runs.is_zero, self._of_users_metrics()))
        if trial.trains:
            self._of_gradients(added_alike=not any(exponents))
        powers = self._of_metrics() | self._of_layers()
        places = enumerate(changing_of(trial.model))
        return Decomposition(
            variables={place: powers[id(one)] for place, one in places if id(one) in powers},
            logs={name: self._of_log(name) for name in trial.logs},
            exponents=exponents,
            warned=tuple(dict.fromkeys(self._told)),
            least=self._runs.least(),
            is_known=self._is_known,
            step=trial.step,
        )

    def _of_users_metrics(self) -> Iterator[str]:
        """The names of the states of metrics with the user's code."""
        metrics = ((id(one), getattr(metric, "_fn", metric)) for one, metric in self._trial.metrics)
        return (
            f"state {key}"
            for key, made_of in metrics
            if key in self._trial.changed and not is_keras_own(made_of)
        )

    def _of_added(self, place: int, added: Added) -> int:
        """The exponent of what a layer adds. Raises BadInput for a sum, which is taken
        for a mean.
        """
        name, is_number = f"added {place}", not added.loss.shape.rank
        power = self._runs.power(name)
        if power == SUM and is_number and not added.is_regularizer:
            raise BadInput(
                f"the layer {added.layer} adds a sum over the batch to the loss: it is taken "
                "for a mean when a batch "
                "is divided",
                remedy="add_loss(ops.mean(loss)), or a value for each sample",
            )
        if is_number and self._runs.is_zero(name):
            self._told.append(
                f"what the layer {added.layer} adds to the loss is 0 for the samples tried, "
                f"{_UNKNOWN}"
            )
            self._is_known = False
        return 0 if power is OTHER else power - MEAN + added.divided

    def _of_loss(self, name: str, reduced: ReducedLoss) -> None:
        """Tells of one of Keras' losses or of those that are given to it. Raises BadInput for a
        sum.
        """
        what = f"the loss of the model {self._trial.model.name} ({name_of(reduced.loss)})"
        power = MEAN if reduced.result.shape.rank else self._runs.power(name)
        if power == SUM or (power != MEAN and self._runs.is_of_sum(name)):
            raise BadInput(
                f"{what} sums over the batch and returns one number, {_IS_A_MEAN}",
                remedy=(
                    "return a value for each sample; keras.losses.Loss with reduction='sum' sums "
                    "them"
                ),
            )
        is_own = not is_keras_own(function_of(reduced.loss))
        # Else it is what the user's own code gives to it.
        if power != MEAN and (is_own or not self._own):
            self._told.append(f"{what} is {NEITHER}")
        elif is_own and self._runs.is_zero(name):
            self._told.append(f"{what} is 0 for the samples tried, {_UNKNOWN}")

    def _of_gradients(self, *, added_alike: bool) -> None:
        """Tells of gradients that are not a mean, unless the reason is told. Raises BadInput for
        those of a sum.
        """
        power = self._runs.power("gradient")
        if self._runs.has_no_gradients():
            found, self._is_known = (
                f"{self._step} has no gradients for the samples tried: {_UNKNOWN}",
                False,
            )
        elif power == SUM or (power != MEAN and added_alike and self._runs.is_of_sum("gradient")):
            raise BadInput(
                f"{self._step} takes the gradients of a sum over the batch, {_IS_A_MEAN}",
                remedy=(
                    "take the mean over samples, or give self.optimizer.scale_loss a value for "
                    "each sample"
                ),
            )
        elif power != MEAN:
            found = f"{self._step} {_UNLIKE}"
        else:
            found = (
                f"the loss of the model {self._trial.model.name} {_DIVIDED}"
                if self._is_divided()
                else ""
            )
        self._told += [found] if found and not self._told else []

    def _is_divided(self) -> bool:
        """Whether a loss is divided by what is computed from samples, which the tried ones may have
        alike by chance.

        Keras' own losses that do so are brought to their share of such a divisor, or are tried.
        """
        reduced, samples = self._trial.probing.losses, self._trial.samples
        results = {id(one.result) for one in reduced}
        own = [one.values for one in reduced if not is_keras_own(function_of(one.loss))]
        of_own = any(reaches(values, samples, results - {id(values)}) for values in own)
        return of_own or any(
            reaches(target, samples, results) for target in self._trial.probing.targets
        )

    def _of_layers(self) -> dict[int, int]:
        """The powers of variables that the user's layers change; tells what is not exact."""
        found = {}
        for variable, layer in self._trial.kept:
            key, name = id(variable), f"state {id(variable)}"
            if key not in self._trial.changed or is_keras_own(layer):
                continue
            power = self._runs.power(name)
            found[key] = MEAN if power is OTHER else power
            if self._runs.is_zero(name):
                self._told.append(
                    f"the layer {layer.name} changes {variable.name} by 0 for the samples "
                    f"tried, {_UNKNOWN}"
                )
            elif power is OTHER:
                self._told.append(
                    f"the layer {layer.name} updates {variable.name} from its samples to what "
                    "is neither a mean nor a "
                    "sum over them: the devices' values are averaged, weighted by samples"
                )
        return found

    def _of_metrics(self) -> dict[int, int]:
        """The powers of metrics' variables; tells what is not exact. Others of a metric tell, as
        its count does.
        """
        changed = [pair for pair in self._trial.metrics if id(pair[0]) in self._trial.changed]
        adding, found, is_silent = self._runs.adding_again(), dict[int, Any](), bool(self._told)
        for key, name in ((id(one), f"state {id(one)}") for one, _ in changed):
            if not self._runs.is_zero(name):
                found[key] = self._runs.power(name) if name in adding else OTHER
        for variable, metric in changed:
            key = id(variable)
            if found.get(key) is not OTHER:
                continue
            others = {found.get(id(one)) for one, owner in changed if owner is metric} - {OTHER}
            power = others.pop() if len(others) == 1 else SUM
            if key in found and not (is_silent and is_keras_own(metric)):
                self._told.append(
                    f"the metric {metric.name} does not only add to {variable.name} a mean or "
                    "a sum over samples: the "
                    f"devices' values are {'averaged' if power == MEAN else 'summed'}, which "
                    "is not what one device "
                    "would log"
                )
            found[key] = power
        return found

    def _of_log(self, name: str) -> int:
        """The power of a log; tells of one that is not exact."""
        if self._runs.is_zero(f"log {name}"):  # as a count may be
            return SUM if is_sum(self._trial.logs[name]) else MEAN
        power = self._runs.power(f"log {name}")
        if power is OTHER:
            self._told.append(told_of_log(self._trial.model, name, NOT_FROM_PARTS))
        return MEAN if power is OTHER else power


def _is_keras_own_step(trial: Trial) -> bool:
    losses = (function_of(one.loss) for one in trial.probing.losses)
    return all(map(is_keras_own, [type(trial.model).train_step, *losses]))
