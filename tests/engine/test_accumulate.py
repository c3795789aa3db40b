"""What is special about a batch in micro-batches.

That it gives one device's weights is tested in test_exact.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.steps import Steps
from tests.engine.test_exact import TOLERANCE, adam, dense_model, samples
from tests.support.cases import cases, full
from tests.support.late import keras, layers, optimizers


@cases("xla", False, full(True), ids=["", "xla"])
def test_each_replica_accumulates_with_its_own_weights(xla: bool) -> None:
    """A nested function could take another replica's weights.

    The reason is that a loop's body is built without the replica's device.
    """
    steps = Steps(dense_model, lambda: optimizers.SGD(0.0), [None, None], xla=xla)
    for variable in steps.model.trainable_variables:
        other = steps.strategy.experimental_local_results(variable.value)[1]
        other.assign(3 * other + 0.1)
    (x, y), *_ = samples()
    whole, _ = steps.step(x, (y,), (70, 30))
    accumulated, _ = steps.step(x, (y,), (70, 30), (35, 10))
    assert accumulated == pytest.approx(whole, abs=TOLERANCE)


def batch_norm_model() -> Any:
    body = [layers.BatchNormalization(momentum=0.5), layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((6,)), *body, layers.Dense(5, "softmax")])


def test_no_replicas_loop_waits_for_anothers() -> None:
    """Loops with batch normalisation and dropout must not take turns.

    TensorFlow orders operations that change something.
    """
    steps = Steps(batch_norm_model, adam, [None, None])
    (x, y), *_ = samples()
    steps.step(x, (y,), (70, 30), (35, 10))
    graph = steps.traces(micro=True)[0].graph
    kinds = ("While", "StatelessWhile")
    first, second = (op for op in graph.get_operations() if op.type in kinds)
    assert first.device != second.device
    assert first not in ancestors(second)
    assert second not in ancestors(first)


def ancestors(op: Any) -> set[Any]:
    found: set[Any] = set()
    rest = [op]
    while rest:
        one = rest.pop()
        new = {*one.control_inputs, *(tensor.op for tensor in one.inputs)} - found
        found |= new
        rest += new
    return found
