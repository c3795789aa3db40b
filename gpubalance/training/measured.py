"""Checks whether a model is the one that a plan was measured with."""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any, TypeAlias

from gpubalance.engine.models import input_shapes
from gpubalance.results.common import shapes_text
from gpubalance.results.plan import Plan

# The part by which two steps may differ in operations that do not take long.
_ALIKE = 1.5
Shapes: TypeAlias = tuple[tuple[int | None, ...], ...]
Fingerprint: TypeAlias = tuple[tuple[str, int], ...]  # see `Verdict.fingerprint`


def unlike(plan: Plan, model: Any, simulate: int | str | Path | None = None, step: Fingerprint | None = None) -> str:
    """How the model, or its step, differs from the plan's, with the command that measures this one; else empty.

    `simulate` is what the plan was loaded with. A number at the end of a name says nothing: Keras numbers the models of
    one name in a process. Of a step's operations that do not take long there may be a half more, as with another metric
    or two.
    """
    known = plan.model
    if known is None:
        return ""
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    was, now = known.input_shapes, input_shapes(model)
    is_named = _unnumbered(model.name) == _unnumbered(known.name)
    is_shaped = was is None or now is None or _alike(was, now)
    here = _balance(plan, simulate, is_named=is_named)
    if parameters != known.parameters or not is_named or not is_shaped:
        of_plan, of_this = ("", "") if is_shaped else [f", samples of {shapes_text(one or ())}" for one in (was, now)]
        return (
            f"the plan was measured with {plan.settings.model} (the model {known.name}, {known.parameters:,} "
            f"parameters{of_plan}); this model, {model.name}, has {parameters:,}{of_this}: {here}"
        )
    if known.step is None or step is None:
        return ""
    (*heavy, (_, fewer)), (*heavy_here, (_, more)) = sorted((known.step, step), key=lambda one: one[-1][1])
    if heavy == heavy_here and more <= _ALIKE * fewer:
        return ""
    measured, trained = (", ".join(f"{kind} {count}" for kind, count in one) for one in (known.step, step))
    return (
        f"the plan was measured with another step of {model.name} (operations: {measured}) than the one that trains "
        f"({trained}): {here}"
    )


def _balance(plan: Plan, simulate: int | str | Path | None, *, is_named: bool) -> str:
    """What measures this model. The plan's function builds it only if the model is named as the plan's is."""
    words = ["gpubalance", "balance"]
    if plan.devices[0].simulated:
        words += ["--simulate", "PROFILE.toml" if simulate is None else str(simulate)]
    named = plan.settings.model
    if ":" in named and is_named:
        return f"{shlex.join([*words, '--model', named])} finds its split"
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "train.py").name
    command = shlex.join([*words, "--model", f"{script}:FUNCTION"])
    return f"{command}, the function that builds it, finds its split"


def _alike(was: Shapes, now: Shapes) -> bool:
    """Whether shapes agree; an open dimension agrees with any."""
    if [len(shape) for shape in was] != [len(shape) for shape in now]:
        return False
    pairs = (pair for shapes in zip(was, now, strict=True) for pair in zip(*shapes, strict=True))
    return all(one == other or None in (one, other) for one, other in pairs)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
