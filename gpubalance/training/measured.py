"""Holds what trains against what was measured: the model, its step, the runtime."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import keras

from gpubalance.devices.environment import OVERRULING
from gpubalance.devices.selection import hosts_option, model_text
from gpubalance.engine import runtime
from gpubalance.engine.models import facts_of
from gpubalance.engine.user_functions import warn_user
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.settings.choices import Precision
from gpubalance.settings.settings import Settings
from gpubalance.training.device_split import Simulate

# The part by which two steps may differ in operations that do not take long.
_ALIKE = 1.5
# What a command says for code of the user's whose name is not known.
ANY_FUNCTION = "FILE.py:FUNCTION"
Fingerprint: TypeAlias = tuple[tuple[str, int], ...]  # see `CombineRules.fingerprint`


def plan_mismatch_text(
    plan: Plan,
    model: Any,
    simulate: Simulate = None,
    file: str | Path | None = None,
    step: Fingerprint | None = None,
) -> str:
    """How the model, or its step, differs from the plan's, with what to do; else empty.

    `simulate` is what the plan was loaded with, `file` where it was, None for no file. A number at
    the end of a name says nothing: Keras numbers the models of one name in a process. Of a step's
    operations that do not take long there may be a half more, as with another metric or two.
    """
    known = plan.model
    if known is None:
        return ""
    here = Model(**facts_of(model) | {"gradient_bytes": known.gradient_bytes})
    is_named = _unnumbered(model.name) == _unnumbered(known.name)
    remedy = _balance(plan, simulate, file, is_named=is_named)
    if is_named and here.parameters != known.parameters and _are_of_shape(here, known):
        remedy = _balance_of_phase(plan, simulate, file)
    if not is_named or not known.is_like(here.model_copy(update={"name": known.name})):
        return (
            f"the plan was measured with {plan.settings.model} (the model "
            f"{model_text(known, here)}), but this model is {model_text(here, known)}: "
            f"{remedy}"
        )
    if known.step is None or step is None or _are_equal(known.step, step):
        return ""
    return (
        f"the plan was measured with another step of {model.name} (operations: "
        f"{_operations(known.step)}) than the one being trained ({_operations(step)}): "
        f"{remedy}"
    )


def _are_of_shape(model: Model, other: Model) -> bool:
    """Whether two models take the same samples, as far as both are known."""
    return len({model.input_shapes, other.input_shapes, None}) <= 2


def _are_equal(step: Fingerprint, other: Fingerprint) -> bool:
    *heavy, (_, light) = step
    *other_heavy, (_, other_light) = other
    return heavy == other_heavy and max(light, other_light) <= _ALIKE * min(
        light, other_light
    )


def _operations(step: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in step)


def use_measured(wanted: Precision | None, *, warns: bool) -> None:
    """Gives the process the measured precision, if known.

    With `warns`, it warns if the script has set another policy.
    """
    if wanted is None:
        return
    policy = keras.config.dtype_policy().name
    own = runtime.policy_of(wanted)
    runtime.use_precision(wanted)
    if warns and policy not in (own, "float32"):
        warn_user(
            f"the split was measured in {wanted}, so its scope sets the policy {own} "
            f"instead of {policy}{_balance_in(policy)}"
        )


def precision_mismatch_text(model: Any, wanted: Precision | None) -> str:
    """How the model trains otherwise than was measured, as far as that is known; else empty."""
    if wanted is None:
        return ""
    own = runtime.precision_of(model)
    if own not in (None, wanted):
        return (
            f"the split was measured in {wanted}, but the model {model.name} trains in "
            f"{own}: build it in split.scope(), and set no other policy or "
            f"TF32{_balance_in(own)}"
        )
    set_here = [name for name in OVERRULING if name in os.environ]
    if set_here:
        return (
            f"the split was measured without {' and '.join(set_here)}, which change a "
            "step: unset them"
        )
    return ""


def xla_mismatch_text(plan: Plan | None, model: Any, *, xla: bool) -> str:
    """How the model trains with or without XLA otherwise than was measured; else empty."""
    if plan is None or plan.settings.xla == xla:
        return ""
    was, wants, option = "with", "jit_compile=False", "--no-xla"
    if xla:
        was, wants, option = "without", "jit_compile=True", "--xla"
    return (
        f"the plan was measured {was} XLA, but the model {model.name} is compiled with "
        f"{wants}: gpubalance balance {option} finds the split for that"
    )


def warn_of_precision(model: Any, wanted: Precision | None) -> None:
    """Warns if the model trains otherwise than was measured."""
    text = precision_mismatch_text(model, wanted)
    if text:
        warn_user(text)


def _balance_in(other: str) -> str:
    """What measures in that precision; empty for a policy that is none of ours."""
    if other not in get_args(Precision):
        return ""
    return f"; gpubalance balance --precision {other} finds the split for that"


def _balance(
    plan: Plan, simulate: Simulate, file: str | Path | None, *, is_named: bool
) -> str:
    """The command that measures this model; one named as the plan's has the plan's function.

    Another model has data of its own, and leaves the plan's file as it is.
    """
    function = plan.settings.model
    if ":" in function and is_named:
        output = () if file is None else ("-o", str(file), "--overwrite")
        command = _plan_command(plan, simulate, function, output)
        return f"{command} finds its split, if that function trains the same layers"
    other = plan
    if plan.settings.data is not None:
        settings = plan.settings.model_copy(update={"data": ANY_FUNCTION})
        other = plan.model_copy(update={"settings": settings})
    command = _plan_command(other, simulate, ANY_FUNCTION, ("-o", "NEW.json"))
    return f"{command} finds its split, if FUNCTION in FILE.py builds it"


def _balance_of_phase(plan: Plan, simulate: Simulate, file: str | Path | None) -> str:
    """The command for a model of the same name of which other layers are frozen."""
    output = ("-o", "phase-2.json")
    if file is not None:
        output = ("-o", str(Path(file).with_stem(f"{Path(file).stem}-2")))
    command = _plan_command(plan, simulate, ANY_FUNCTION, output)
    return (
        f"its best split may differ: {command}, where FUNCTION builds the model as it "
        'trains now. If you froze other layers, see "Fine-tune in phases" in '
        "gpubalance guide train"
    )


def balance_command(plan: Plan | None, simulate: Simulate) -> str:
    """A balance of what trains, with what the plan was made with, but for its global batch."""
    if plan is None:
        words = ["gpubalance", "balance", *_of_simulation(simulate)]
        return shlex.join([*words, "--model", ANY_FUNCTION])
    function = plan.settings.model
    if ":" not in function:
        function = ANY_FUNCTION
    return shlex.join(_words(plan, simulate, function))


def _of_simulation(simulate: Simulate) -> list[str]:
    return [] if simulate is None else ["--simulate", str(simulate)]


def _plan_command(
    plan: Plan, simulate: Simulate, function: str, output: Sequence[str]
) -> str:
    """The balance of that function with what the plan was made with."""
    words = _words(plan, simulate, function)
    # It has others if none was asked for.
    if not plan.predicted.by_global_batch:
        words += ["--global-batch", str(plan.global_batch)]
    return shlex.join([*words, *output])


def _words(plan: Plan, simulate: Simulate, function: str) -> list[str]:
    words = ["gpubalance", "balance"]
    if plan.devices[0].simulated:
        words += ["--simulate", "PROFILE.toml" if simulate is None else str(simulate)]
    hosts = hosts_option(plan, plan.devices)
    if hosts is not None:
        words += ["--hosts", hosts]
    # Without their names, balance would take all devices, and on this machine only.
    words += ["--gpus", *(device.called for device in plan.devices)]
    words += ["--model", function]
    usual = Settings()
    for name, value in plan.settings:
        if name != "model" and value != getattr(usual, name):
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
    return words


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+$", "", name)
