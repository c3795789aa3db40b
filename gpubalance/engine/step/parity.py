"""The parity check: a step in unequal parts beside the same step whole, compared by numbers.

Each quantity tells by itself how the parts make the whole, as a `CombineRules` has it, and the
step then combines it in that way. What no power makes is warned of, and what a split can't train is
refused.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import tensorflow as tf

from gpubalance.engine.keras_patches import is_keras_own, users_parts
from gpubalance.engine.replicas import Replicas, cached_on_replicas
from gpubalance.engine.step import built
from gpubalance.engine.step.parity_analysis import UNKNOWN, ParityAnalysis
from gpubalance.engine.step.points import number_of_replica
from gpubalance.engine.step.sums import over_replicas
from gpubalance.engine.step.traced_step import TracedStep
from gpubalance.engine.users_errors import reason_of
from gpubalance.errors import BadInput, EnvironmentFault
from gpubalance.remedies import known_error
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.common import Refusal

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

    `batch` is one as the step takes it, of which up to 16 samples are tried, at most a device's
    `share`, but two at least: a single one is tried beside its copy, which may hide what others
    show. Of a step that fails for these alone nothing is known, and a warning says so.
    """
    first = next(part for part in tf.nest.flatten(batch) if part is not None)
    is_single = first.shape[0] == 1
    if is_single:
        batch = tf.nest.map_structure(_twice, batch)
    exact = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        warnings = built.check(model, trains=trains)
        if trains:
            built.refuse_gradients_that_do_not_add_up(model)
        found = _tried(
            model, batch, device, min(TRIED_SAMPLES, max(2, share)), trains=trains
        )
    except BadInput as error:
        return CombineRules(refused=Refusal(message=error.message, remedy=error.remedy))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(exact)
        # A graph refers to itself, and TensorFlow keeps constants as large as the weights for this
        # one's.
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


def _tried(
    model: Any, batch: Any, device: str, count: int, *, trains: bool
) -> CombineRules:
    """What so many samples tell; with half as many if memory does not hold them."""
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
            return _tried(model, batch, device, max(2, count // 2), trains=trains)
        failed = "two samples, for lack of memory"
    # Whatever the user's code raises for these samples: training may not.
    except Exception as error:  # noqa: BLE001
        failed = f"a few samples ({reason_of(error)})"
    warning = f"{training} can't be tried on {failed}: {UNKNOWN}"
    return CombineRules(warned=(warning,), is_known=False)


def can_run(model: Any, batch: Any, strategy: Any, device: str) -> bool:
    """Whether the `train_step` runs with such samples, if a split can train it at all."""
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
