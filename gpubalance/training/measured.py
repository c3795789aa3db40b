"""Whether a model is the one that a plan was measured with."""

from __future__ import annotations

import math
import re
from typing import Any

from gpubalance.results.plan import Plan


def unlike(plan: Plan, model: Any) -> str:
    """What differs between them, with the command that measures this one; empty where nothing does.

    Keras numbers the models of one name in a process, so a number at the end of it says nothing.
    """
    if plan.model is None:
        return ""
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    if (parameters, _unnumbered(model.name)) == (plan.model.parameters, _unnumbered(plan.model.name)):
        return ""
    measured = plan.settings.model
    name = measured if ":" in measured else "train.py:build"
    return (
        f"the plan was measured with {measured} (the model {plan.model.name}, {plan.model.parameters:,} parameters); "
        f"this model, {model.name}, has {parameters:,}: gpubalance balance --model {name} finds its split"
    )


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
