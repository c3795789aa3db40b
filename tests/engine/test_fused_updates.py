"""One kernel updates a variable as Keras' optimizer does with many operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpubalance.engine.replacing import acting
from tests.support.cases import cases
from tests.support.late import keras, optimizers, tf

SAME_KERNEL_FOR = {
    "Adam": lambda: optimizers.Adam(1e-2),
    "Adam, other betas": lambda: optimizers.Adam(1e-2, 0.5, 0.9, epsilon=1e-4),
    "AdamW": lambda: optimizers.AdamW(1e-2, weight_decay=0.1, clipnorm=1.0),
    "SGD": lambda: optimizers.SGD(1e-2),
    "momentum": lambda: optimizers.SGD(1e-2, momentum=0.9),
    "Nesterov": lambda: optimizers.SGD(1e-2, momentum=0.9, nesterov=True),
}


def halved() -> Any:
    """Adam with an update of the user's own."""

    class Halved(optimizers.Adam):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient / 2, variable, learning_rate)

    return Halved(1e-2)


def updated(
    make: Callable[[], Any],
    *,
    fused: bool,
    dtype: str = "float32",
    only_rows: bool = False,
) -> tuple[Any, int]:
    """Two variables after 30 steps with gradients of many sizes, and the kernels of one step."""
    from gpubalance.engine.step.fused_updates import fused_updates

    random = np.random.default_rng(0)
    variables = [keras.Variable(random.normal(size=(40, 2)), dtype) for _ in range(2)]
    optimizer = make()
    optimizer.build(variables)

    @tf.function
    def step(gradients: Any) -> None:
        if only_rows:
            rows = tf.range(9), (40, 2)
            gradients = [tf.IndexedSlices(one[:9], *rows) for one in gradients]
        with acting(fused_updates() if fused else {}):
            optimizer.apply(gradients, variables)

    for _ in range(30):
        sizes = 10 ** random.uniform(-6, 1, (2, 40, 2))
        gradients = tf.constant(random.normal(size=(2, 40, 2)) * sizes, dtype)
        step(tf.unstack(gradients))
    graph = step.get_concrete_function(tf.unstack(gradients)).graph
    kinds = Counter(operation.type for operation in graph.get_operations())
    applied = sum(count for kind, count in kinds.items() if "ResourceApply" in kind)
    return np.stack([variable.numpy() for variable in variables]), applied


@cases("dtype", "float32", "float64")
@pytest.mark.parametrize("name", SAME_KERNEL_FOR)
def test_one_kernel_updates_a_variable_as_keras_does(name: str, dtype: str) -> None:
    """To rounding, although Keras and the kernel round 1 - beta in other ways."""
    make = SAME_KERNEL_FOR[name]
    expected, none = updated(make, fused=False, dtype=dtype)
    found, kernels = updated(make, fused=True, dtype=dtype)
    assert (none, kernels) == (0, 2)
    assert np.abs(found - expected).max() <= 1.3e-7


@cases(
    "make, options",
    (lambda: optimizers.Adam(1e-2, amsgrad=True), {}),
    (lambda: optimizers.Adam(1e-2), {"only_rows": True}),
    (lambda: optimizers.RMSprop(1e-2), {}),
    (halved, {}),
)
def test_what_no_kernel_is_for_keras_updates(
    make: Callable[[], Any], options: dict[str, Any]
) -> None:
    expected, _ = updated(make, fused=False, **options)
    found, kernels = updated(make, fused=True, **options)
    assert kernels == 0
    assert np.array_equal(found, expected)
