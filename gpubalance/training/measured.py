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


def unlike(plan: Plan, model: Any, simulate: int | str | Path | None = None) -> str:
    """How the model differs from the plan's, with the command that measures this one; empty if it does not.

    `simulate` is what the plan was loaded with. A number at the end of a name says nothing: Keras numbers the models of
    one name in a process.
    """
    known = plan.model
    if known is None:
        return ""
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    was, now = known.input_shapes, input_shapes(model)
    other_shapes = was is not None and now is not None and not _alike(was, now)
    if (parameters, _unnumbered(model.name)) == (known.parameters, _unnumbered(known.name)) and not other_shapes:
        return ""
    measured = plan.settings.model
    measured_with, of_this = f"{known.parameters:,} parameters", f"{parameters:,}"
    if was and now and other_shapes:
        measured_with, of_this = (
            f"{text}, samples of {shapes_text(of)}" for text, of in ((measured_with, was), (of_this, now))
        )
    return (
        f"the plan was measured with {measured} (the model {known.name}, {measured_with}); "
        f"this model, {model.name}, has {of_this}: {_balance(plan, simulate)}, the function that "
        "builds it, finds its split"
    )


def another_step(plan: Plan, model: Any, step: Fingerprint | None, simulate: int | str | Path | None = None) -> str:
    """The warning about a step with other operations than the one that was measured; empty for the same, or unknown.

    Of those that do not take long there may be a half more, as with another metric or two.
    """
    was = plan.model.step if plan.model else None
    if was is None or step is None:
        return ""
    (*heavy, (_, fewer)), (*heavy_here, (_, more)) = sorted((was, step), key=lambda one: one[-1][1])
    if heavy == heavy_here and more <= _ALIKE * fewer:
        return ""
    there, here = (", ".join(f"{kind} {count}" for kind, count in one) for one in (was, step))
    return (
        f"the plan was measured with another step of {model.name} (operations: {there}) than the one that trains "
        f"({here}): {_balance(plan, simulate)}, the function that builds it, finds its split"
    )


def _balance(plan: Plan, simulate: int | str | Path | None) -> str:
    """The command that measures this model. Its function is known only if the plan's model was named by one."""
    words = ["gpubalance", "balance"]
    if plan.devices[0].simulated:
        words += ["--simulate", "PROFILE.toml" if simulate is None else str(simulate)]
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "train.py").name
    named = plan.settings.model
    return shlex.join([*words, "--model", named if ":" in named else f"{script}:FUNCTION"])


def _alike(was: Shapes, now: Shapes) -> bool:
    """Whether shapes agree; an open dimension agrees with any."""
    if [len(shape) for shape in was] != [len(shape) for shape in now]:
        return False
    pairs = (pair for shapes in zip(was, now, strict=True) for pair in zip(*shapes, strict=True))
    return all(one == other or None in (one, other) for one, other in pairs)


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
