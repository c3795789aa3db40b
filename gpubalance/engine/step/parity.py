"""The parity check: a step in unequal parts beside the same step whole, compared by numbers.

The numbers of each quantity show how its parts make the whole, as a `CombineRules` has it, and the
step then combines the parts in that way. A quantity that no power makes whole is warned of, and
what a split can't train is refused.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_patches import (
    function_of,
    is_keras_own,
    name_of,
    users_parts,
)
from gpubalance.engine.replicas import Replicas, cached_on_replicas
from gpubalance.engine.sources import is_sum, reaches
from gpubalance.engine.step import built
from gpubalance.engine.step.built import weights_are_finite
from gpubalance.engine.step.logs import NOT_FROM_PARTS, log_warning
from gpubalance.engine.step.part import Added, ReducedLoss
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.runs import Runs
from gpubalance.engine.step.state import changing_of
from gpubalance.engine.step.sums import over_replicas
from gpubalance.engine.step.traced_step import TracedStep, state_name
from gpubalance.engine.users_errors import reason_of
from gpubalance.errors import BadInput, EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.results.combine_rules import MEAN, SUM, CombineRules
from gpubalance.results.common import Refusal

UNKNOWN = (
    "so gpubalance cannot check that it takes a mean over samples, as a split needs"
)
NEITHER = (
    "not a mean over samples. The losses of a batch's parts are averaged, weighted by "
    "samples, so the result is not exactly that of one device"
)
_WRONGLY_A_MEAN = (
    "which a split would wrongly treat as a mean (also if the sum is divided by a "
    "fixed number)"
)
_GRADIENTS_OF_NO_MEAN = (
    "takes gradients that are not a mean over samples: it clips them, or computes "
    "something from the whole batch, of which each device has only its share. A split "
    "adds up the gradients of the parts, so the result is not exactly that of one "
    "device. A loss that compares samples with each other differs too, because each "
    "device compares only its own"
)
_LOSS_IS_DIVIDED = (
    "is divided by a sum or a mean over the batch, such as of weights or a mask. A "
    "split divides each part's loss by the part's own sum or mean, so the result is "
    "not exactly that of one device"
)

_SET_BY_EACH = (
    "from samples. It is a tf.Variable, so each device sets its own, from its share "
    "alone. Make it a keras.Variable: if a mean or a sum over samples sets that, it is "
    "as on one device"
)
_COUNTED = (
    "without samples. It is a tf.Variable, so it is set once per micro-batch, not once "
    "per step. Make it a keras.Variable"
)


class ParityAnalysis:
    """Finds how each quantity of a step is made from parts, and collects the warnings.

    `training` is what the warnings call the step; `own_code` names layers and losses with code of
    the user's.
    """

    def __init__(self, step: TracedStep, training: str, own_code: list[str]) -> None:
        self._step = step
        self._training = training
        self._own_code = own_code
        self._runs = Runs(
            step,
            may_choose_samples=bool(own_code) or _has_own_loss_or_step(step),
        )
        self._warnings = list(step.probing.warnings)
        self._is_known = True
        # Whether a loss is neither a mean nor a sum over samples
        self._has_odd_loss = False

    def combine_rules(self) -> CombineRules:
        """All that the runs show. Raises BadInput for what a split can't train."""
        step = self._step
        # Quantities have the names of runs.py: `added 0`, `loss 0`, `gradient`.
        added = enumerate(step.probing.added)
        extra_exponents = tuple(
            self._extra_exponent(f"added {place}", loss) for place, loss in added
        )
        if any(extra_exponents):
            self._runs.run_parts(extra_exponents)
        for place, reduced in enumerate(step.probing.losses):
            self._judge_loss(f"loss {place}", reduced)
        if self._has_silent_metric():
            self._is_known = False
        if step.trains:
            self._judge_gradients(layers_add_means=not any(extra_exponents))
        weight_exponents = self._exponents_of_metrics() | self._exponents_of_layers()
        logs = {name: self._exponent_of_log(name) for name in step.logs}
        for name in step.set_by_samples:
            self._warnings.append(
                f"the model {step.model.name} sets {name} {_SET_BY_EACH}"
            )
        with_micro_batches = []
        for name in step.counting:
            with_micro_batches.append(
                f"the model {step.model.name} sets {name} {_COUNTED}"
            )
        if not self._runs.is_finite():
            # Then the numbers show nothing.
            self._warnings = [*step.probing.warnings, *self._not_finite()]
            self._is_known = False
        variables = {}
        for place, variable in enumerate(changing_of(step.model)):
            if id(variable) in weight_exponents:
                variables[place] = weight_exponents[id(variable)]
        return CombineRules(
            variables=variables,
            logs=logs,
            exponents=extra_exponents,
            warned=tuple(dict.fromkeys(self._warnings)),
            warned_with_micro_batches=tuple(with_micro_batches),
            minimum=self._runs.minimum(),
            is_known=self._is_known,
            step=step.operations,
        )

    def _not_finite(self) -> list[str]:
        """The warning of a loss, or a gradient, that is no number for the samples tried.

        None of weights that are no numbers any more: it was given when they became so.
        """
        if not weights_are_finite(self._step.model):
            return []
        text = (
            f"the loss of the model {self._step.model.name}, or its gradient, is NaN "
            "or infinite for the samples tried"
        )
        parts = self._step.parts_with_nan()
        if parts:
            text += f": their {' and '.join(parts)} contain NaN or infinity"
        return [text]

    def _extra_exponent(self, name: str, added: Added) -> int:
        """The power of its weight by which a part multiplies what a layer adds; 0 for a mean.

        The average over parts, weighted by samples, is then what the whole batch adds. Raises
        BadInput for a sum that a split would take for a mean.
        """
        is_number = not added.tensor.shape.rank
        weight_exponent = self._runs.weight_exponent(name)
        if weight_exponent == SUM and is_number and not added.is_regularizer:
            raise BadInput(
                f"the layer {added.layer} adds a sum over the batch to the loss, which "
                "a split would wrongly treat as a mean",
                remedy="use add_loss(ops.mean(loss)), or return one value per sample",
            )
        if is_number and self._runs.is_zero(name):
            self._warnings.append(
                f"the layer {added.layer} adds 0 to the loss for the samples tried, "
                f"{UNKNOWN}"
            )
            self._is_known = False
        if weight_exponent is None:
            return 0
        # If `is_divided`, Keras divides it by the part's number of samples.
        return weight_exponent - MEAN + int(added.is_divided)

    def _judge_loss(self, name: str, reduced: ReducedLoss) -> None:
        """Warns of a loss, Keras' or the user's, that may be no mean. Raises BadInput for a sum."""
        loss = f"the loss of the model {self._step.model.name} ({name_of(reduced.loss_object)})"
        is_by_sample = bool(reduced.result.shape.rank)
        weight_exponent = MEAN if is_by_sample else self._runs.weight_exponent(name)
        is_lost = weight_exponent is None and self._runs.is_lost(name)
        # A lost one may pass for a sum: rounding may by chance add the same for each copy.
        is_of_sum = (
            weight_exponent != MEAN and not is_lost and self._runs.is_of_sum(name)
        )
        if weight_exponent == SUM or is_of_sum:
            raise BadInput(
                f"{loss} sums over the batch and returns one number, {_WRONGLY_A_MEAN}",
                remedy="return one value per sample; "
                "keras.losses.Loss(reduction='sum') sums them",
            )
        is_own = not is_keras_own(function_of(reduced.loss_object))
        if is_lost:
            if is_own:
                self._warnings.append(
                    f"{loss} is only rounding error for the samples tried, {UNKNOWN}"
                )
        # Else the user's own code may make it no mean: then the warning of gradients names that.
        elif weight_exponent != MEAN and (is_own or not self._own_code):
            self._warnings.append(f"{loss} is {NEITHER}")
            self._has_odd_loss = True
        elif is_own and self._runs.is_zero(name):
            self._warnings.append(f"{loss} is 0 for the samples tried, {UNKNOWN}")

    def _has_silent_metric(self) -> bool:
        """Whether a metric with code of the user's counts 0 for the samples tried."""
        for variable, metric in self._changed(self._step.metric_variables):
            is_own = not is_keras_own(getattr(metric, "_fn", metric))
            if is_own and self._runs.is_zero(state_name(variable)):
                return True
        return False

    def _changed(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Those of the variables, each with its owner, that the step changes."""
        return [pair for pair in pairs if id(pair[0]) in self._step.changed]

    def _judge_gradients(self, *, layers_add_means: bool) -> None:
        """Warns of gradients that may be no mean, unless something has been warned of already.

        Raises BadInput for those of a sum.
        """
        warning = self._gradient_warning(layers_add_means=layers_add_means)
        if warning and not self._warnings:
            self._warnings.append(warning)

    def _gradient_warning(self, *, layers_add_means: bool) -> str:
        """The warning of gradients that are zero, lost in rounding, no mean, or divided; or "".

        If they are zero or lost, the check can't decide. Raises BadInput for those of a sum. Copies
        of the samples show one only if `layers_add_means`: what layers add needs no extra exponent.
        """
        weight_exponent = self._runs.weight_exponent("gradient")
        if self._runs.has_no_gradients():
            self._is_known = False
            return f"{self._training} has no gradients for the samples tried, {UNKNOWN}"
        if self._runs.has_lost_gradients():
            self._is_known = False
            return (
                f"{self._training} gives gradients that are only rounding error for "
                f"the samples tried, {UNKNOWN}"
            )
        if weight_exponent == SUM or (
            layers_add_means and self._takes_sum(weight_exponent)
        ):
            raise BadInput(
                f"{self._training} takes the gradients of a sum over the batch, {_WRONGLY_A_MEAN}",
                remedy="take the mean over samples, or pass one value per sample to "
                "self.optimizer.scale_loss",
            )
        if weight_exponent != MEAN:
            return f"{self._training} {_GRADIENTS_OF_NO_MEAN}"
        if self._is_divided():
            return f"the loss of the model {self._step.model.name} {_LOSS_IS_DIVIDED}"
        return ""

    def _takes_sum(self, weight_exponent: int | None) -> bool:
        """Whether copies of the samples show that gradients of this power are those of a sum.

        Not if a loss is neither a mean nor a sum: losses are known more closely than gradients.
        """
        if weight_exponent == MEAN or self._has_odd_loss:
            return False
        return self._runs.is_of_sum("gradient")

    def _is_divided(self) -> bool:
        """Whether a loss is divided by what is computed from samples.

        The parts tried may have the same divisor by chance, so the graph decides. Keras' own losses
        are left out: weighing.py gives those that divide by weights or by a mask their share of the
        divisor, and the runs show the others, such as Dice.
        """
        probing = self._step.probing
        samples = self._step.samples
        results = {id(reduced.result) for reduced in probing.losses}
        for reduced in probing.losses:
            is_own = not is_keras_own(function_of(reduced.loss_object))
            if is_own and reaches(
                reduced.values, samples, results - {id(reduced.values)}
            ):
                return True
        return any(reaches(target, samples, results) for target in probing.targets)

    def _exponents_of_layers(self) -> dict[int, int]:
        """The powers of variables that the user's layers change; warns of what is not exact."""
        weight_exponents = {}
        for variable, layer in self._changed(self._step.layer_variables):
            if is_keras_own(layer):
                continue
            name = state_name(variable)
            weight_exponent = self._runs.weight_exponent(name)
            weight_exponents[id(variable)] = (
                MEAN if weight_exponent is None else weight_exponent
            )
            too_small_text = None
            if self._runs.is_zero(name):
                too_small_text = "0"
            elif self._runs.is_lost(name):
                too_small_text = "no more than rounding error"
            if too_small_text:
                self._warnings.append(
                    f"the layer {layer.name} changes {variable.name} by {too_small_text} "
                    f"for the samples tried, {UNKNOWN}"
                )
            elif weight_exponent is None:
                self._warnings.append(
                    f"the layer {layer.name} updates {variable.name} from its samples, "
                    "but not by a mean or a sum over them: the devices' values are "
                    "averaged, weighted by samples"
                )
        return weight_exponents

    def _exponents_of_metrics(self) -> dict[int, int]:
        """The powers of metrics' variables; warns of what is not exact.

        If a variable's numbers don't show its power, it gets that of the metric's other variables,
        such as its count, if they have but one; else it is summed.
        """
        # A metric of Keras, such as that of the loss, may only show what was warned of already.
        has_warned = bool(self._warnings)
        adding = self._runs.adding_states()
        changed = self._changed(self._step.metric_variables)
        weight_exponents: dict[int, int] = {}
        for variable, _ in changed:
            name = state_name(variable)
            weight_exponent = self._runs.weight_exponent(name)
            if (
                weight_exponent is not None
                and name in adding
                and not self._runs.is_zero(name)
            ):
                weight_exponents[id(variable)] = weight_exponent
        for variable, metric in changed:
            if id(variable) in weight_exponents:
                continue
            siblings = [id(other) for other, owner in changed if owner is metric]
            known = {
                weight_exponents[key] for key in siblings if key in weight_exponents
            }
            weight_exponent = SUM
            if len(known) == 1:
                weight_exponent = known.pop()
            weight_exponents[id(variable)] = weight_exponent
            name = state_name(variable)
            is_silent = (
                self._runs.is_zero(name)
                or self._runs.is_lost(name)
                or not self._runs.has_finite(name)
            )
            if not is_silent and not (has_warned and is_keras_own(metric)):
                combined = "averaged" if weight_exponent == MEAN else "summed"
                self._warnings.append(
                    f"the metric {metric.name} does more than add a mean or a sum over "
                    f"samples to {variable.name}: the devices' values are {combined}, "
                    "which is not what one device would log"
                )
        return weight_exponents

    def _exponent_of_log(self, name: str) -> int:
        """The power of a log; warns of one that is not exact."""
        # 0 or lost in rounding, as a count may be: then its last operation decides.
        if self._runs.is_zero(f"log {name}") or self._runs.is_lost(f"log {name}"):
            if is_sum(self._step.logs[name]):
                return SUM
            return MEAN
        weight_exponent = self._runs.weight_exponent(f"log {name}")
        if weight_exponent is None:
            self._warnings.append(log_warning(self._step.model, name, NOT_FROM_PARTS))
            return MEAN
        return weight_exponent


def _has_own_loss_or_step(step: TracedStep) -> bool:
    """Whether the user has written the model's `train_step` or one of its losses."""
    functions = [type(step.model).train_step]
    functions += [function_of(reduced.loss_object) for reduced in step.probing.losses]
    return not all(map(is_keras_own, functions))


TRIED_SAMPLES = 16  # of which a quarter is one part


def check(
    model: Any,
    batch: Any,
    device: str,
    *,
    share: int = TRIED_SAMPLES,
    trains: bool = True,
) -> CombineRules:
    """How a step's quantities are made from parts, and what a split can't train, or not exactly.

    Tries from 2 to 16 samples of `batch`, a batch as the step takes it, at most as many as a
    device's largest part has (`share`). A single one is tried beside its copy, which may hide what
    others show. If the step fails with these samples, nothing is known, and a warning says so: in
    training it may work.
    """
    first = next(part for part in tf.nest.flatten(batch) if part is not None)
    is_single = first.shape[0] == 1
    if is_single:
        batch = tf.nest.map_structure(_twice, batch)
    tf32_was_on = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        warnings = built.check(model, trains=trains)
        if trains:
            built.refuse_gradients_that_do_not_add_up(model)
        found = _try_on(
            model, batch, device, min(TRIED_SAMPLES, max(2, share)), trains=trains
        )
    except BadInput as error:
        return CombineRules(refused=Refusal(message=error.message, remedy=error.remedy))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(tf32_was_on)
        # Frees the graph now: it refers to itself, and holds constants as large as the weights.
        gc.collect()
    return found.model_copy(
        update={
            "warned": (*warnings, *found.warned),
            "is_known": found.is_known and not is_single,
        }
    )


def _twice(part: Any) -> Any:
    if part is None:
        return None
    return tf.repeat(tf.convert_to_tensor(part), 2, axis=0)


def _try_on(
    model: Any, batch: Any, device: str, count: int, *, trains: bool
) -> CombineRules:
    """What `count` samples show, or half as many if memory does not hold them, and so on to 2."""
    own_code = users_parts(model)
    if not is_keras_own(type(model).train_step):
        training = f"the train_step of the model {model.name}"
    elif own_code:
        training = (
            f"training the model {model.name} (your own code: {', '.join(own_code)})"
        )
    else:
        training = f"training the model {model.name}"
    try:
        step = TracedStep(model, batch, device, count, trains=trains)
        return ParityAnalysis(step, training, own_code).combine_rules()
    except BadInput:
        raise
    except tf.errors.ResourceExhaustedError:
        if count > 2:
            return _try_on(model, batch, device, max(2, count // 2), trains=trains)
        failed = "two samples, for lack of memory"
    # Whatever the user's code raises for these samples: in training it may work.
    except Exception as error:  # noqa: BLE001
        failed = f"a few samples ({reason_of(error)})"
    warning = f"{training} can't be tried on {failed}, {UNKNOWN}"
    return CombineRules(warned=(warning,), is_known=False)


def can_run(model: Any, batch: Any, strategy: Any, device: str) -> bool:
    """Whether the `train_step` runs with samples such as the batch's.

    Also true if it raises BadInput, which the check will report.
    """
    try:
        tensors = tf.nest.map_structure(tf.convert_to_tensor, batch)
        built.build(model, strategy, tensors, trains=True)
        step = TracedStep(model, batch, device, TRIED_SAMPLES, trains=True)
        step.run(step.states())
    except BadInput:
        return True
    # Whatever Keras or the user's code raises for labels of another shape.
    except Exception:  # noqa: BLE001
        return False
    return True


@cached_on_replicas
def check_sum(replicas: Replicas) -> None:
    """Raises EnvironmentFault unless each device gets the sum of all devices' numbers.

    Each device gives a vector, float32 [replicas], with 1 in its own place and 0 elsewhere, so the
    sum is 1 everywhere, and a wrong one shows whose numbers are lost. In a cluster all processes
    must call this together. The same replicas are checked once.
    """
    shape = (replicas.count, replicas.count)

    # The numbers are an argument: constants would be summed while the function is made.
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)], autograph=False)
    def summed(numbers: Any) -> Any:
        return replicas.strategy.run(_sum_of_own, (numbers,))

    sums = replicas.strategy.experimental_local_results(summed(tf.eye(replicas.count)))
    is_right = np.all([total.numpy() == 1 for total in sums], axis=0)
    if not is_right.all():
        lost = []
        for label, right in zip(replicas.labels, is_right, strict=True):
            if not right:
                lost.append(label)
        known = known_error("wrong-sum")
        raise EnvironmentFault(
            f"the all-reduce {replicas.summing.all_reduce} gives a wrong sum: the "
            f"numbers from {', '.join(lost)} do not reach every device unchanged",
            cause=known.cause,
            remedy=known.remedy,
        )


def _sum_of_own(numbers: Any) -> Any:
    """A replica's sum over all replicas, by the step's own all-reduce."""
    own = numbers[number_of_replica()]
    (total,) = over_replicas([own])
    return total
