"""What every step leans on of Keras' insides, checked when it is used: where an optimizer sums gradients.

A Keras optimizer clips gradients, and looks for infinities in them, before it sums them over the replicas: each
replica would clip its own part. Here the sum comes first, so the optimizer must not sum again. What only training
leans on is in training/.
"""

from __future__ import annotations

from typing import Any

import keras

from gpubalance.errors import BadInput, EnvironmentFault

KNOWN = "3.12 to 3.15"
SUM = "_all_reduce_sum_gradients"
# What an optimizer can have, but not under a strategy, and what to do instead.
_NOT_OVER_DEVICES = {
    "gradient_accumulation_steps": "leave it out; a plan's micro-batches do the same within a step",
    "ema_overwrite_frequency": "leave it out: the weights become their averages when the training ends",
}


def summing(optimizer: Any) -> Any:
    """The optimizer whose method SUM sums gradients over the replicas: itself, or the one that a loss scale wraps.

    With `list` in the place of that method, `apply` takes gradients that are summed already.

    Raises EnvironmentFault for a Keras that sums somewhere else, BadInput for an optimizer with what Keras can't do
    under a strategy.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not callable(getattr(inner, SUM, None)):
        raise EnvironmentFault(
            f"Keras {keras.__version__} sums gradients in another place than gpubalance knows",
            remedy=f"use Keras {KNOWN}",
        )
    for option, instead in _NOT_OVER_DEVICES.items():
        if getattr(inner, option, None):
            raise BadInput(
                f"the model's optimizer has {option}, which Keras can't do over several devices", remedy=instead
            )
    return inner
