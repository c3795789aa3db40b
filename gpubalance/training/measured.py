"""Holds what trains against what was measured: the model, its step, the precision."""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, TypeAlias, get_args

import keras

from gpubalance.devices.environment import OVERRULING
from gpubalance.devices.planned import model_text
from gpubalance.engine import precision
from gpubalance.engine.models import facts_of
from gpubalance.engine.users_lines import users_line
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.settings.choices import Precision
from gpubalance.training.sizes import Simulate

# The part by which two steps may differ in operations that do not take long.
_ALIKE = 1.5
Fingerprint: TypeAlias = tuple[tuple[str, int], ...]  # see `Verdict.fingerprint`


def unlike(
    plan: Plan, model: Any, simulate: Simulate = None, step: Fingerprint | None = None
) -> str:
    """How the model, or its step, differs from the plan's, with the command that measures this one;
    else empty.

    `simulate` is what the plan was loaded with. A number at the end of a name says nothing: Keras
    numbers the models of one name in a process. Of a step's operations that do not take long there
    may be a half more, as with another metric or two.
    """
    known = plan.model
    if known is None:
        return ""
    found = Model(**facts_of(model) | {"gradient_bytes": known.gradient_bytes})
    is_named = _unnumbered(model.name) == _unnumbered(known.name)
    here = _balance(plan, simulate, is_named=is_named)
    if not is_named or not known.is_like(found.model_copy(update={"name": known.name})):
        return (
            f"the plan was measured with {plan.settings.model} (the model "
            f"{model_text(known, found)}), and this model "
            f"is {model_text(found, known)}: {here}"
        )
    if known.step is None or step is None:
        return ""
    (*heavy, (_, fewer)), (*heavy_here, (_, more)) = sorted(
        (known.step, step), key=lambda one: one[-1][1]
    )
    if heavy == heavy_here and more <= _ALIKE * fewer:
        return ""
    measured, trained = (
        ", ".join(f"{kind} {count}" for kind, count in one) for one in (known.step, step)
    )
    return (
        f"the plan was measured with another step of {model.name} (operations: {measured}) "
        "than the one that trains "
        f"({trained}): {here}"
    )


def use_measured(wanted: Precision | None) -> None:
    """Gives the process the precision that was measured, if one is known; warns of a policy that a
    script has set.
    """
    if wanted is None:
        return
    policy, own = keras.config.dtype_policy().name, precision.policy_of(wanted)
    precision.use(wanted)
    if policy not in (own, "float32"):
        warnings.warn_explicit(
            f"the split is for {wanted}, so its scope sets the policy {own} instead of "
            f"{policy}{_balance_in(policy)}",
            UserWarning,
            *users_line(),
        )


def unlike_precision(model: Any, wanted: Precision | None) -> str:
    """How the model trains otherwise than was measured, as far as that is known; else empty."""
    if wanted is None:
        return ""
    own = precision.of(model)
    if own not in (None, wanted):
        return (
            f"the split is for {wanted}, and the model {model.name} trains in {own}: build it "
            "in split.scope(), and "
            f"set no other policy or TF32{_balance_in(own)}"
        )
    set_here = [name for name in OVERRULING if name in os.environ]
    if set_here:
        return (
            f"the split was measured without {' and '.join(set_here)}, as they change a step: "
            "unset them"
        )
    return ""


def _balance_in(other: str) -> str:
    """What measures in that precision; empty for a policy that is none of ours."""
    if other not in get_args(Precision):
        return ""
    return f"; gpubalance balance --precision {other} finds the split of that"


def _balance(plan: Plan, simulate: Simulate, *, is_named: bool) -> str:
    """What measures this model. The plan's function builds it only if the model is named as the
    plan's is.
    """
    words = ["gpubalance", "balance"]
    if plan.devices[0].simulated:
        words += ["--simulate", "PROFILE.toml" if simulate is None else str(simulate)]
    named = plan.settings.model
    if ":" in named and is_named:
        return (
            f"{shlex.join([*words, '--model', named])} finds its split, if that function trains "
            "the same layers"
        )
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "train.py").name
    command = shlex.join([*words, "--model", f"{script}:FUNCTION"])
    return f"{command}, the function that builds it, finds its split"


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
