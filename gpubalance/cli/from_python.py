"""`gpubalance.balance`: the command, for functions of the calling script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.cli.balance import balance as command
from gpubalance.cli.command import Command, as_typed, by_name, common, options_of
from gpubalance.cli.parameters import with_options
from gpubalance.errors import BadInput, GpubalanceError, Interrupted, UsageError

if TYPE_CHECKING:
    from gpubalance.jobs.events import Event, Watch
    from gpubalance.results.plan import Plan

# Passed separately, or only for a terminal.
_NOT_OPTIONS = {"model", "data", "json", "dry-run", "verbose"}


def balance(
    build: object, data: object, watch: Watch | None, options: Mapping[str, Any]
) -> Plan:
    """Runs the command; `gpubalance.balance` documents it."""
    loaded = Command("balance", "")
    known = {
        flag: option for flag, option in options_of(loaded) if flag not in _NOT_OPTIONS
    }
    wanted = {name: value for name, value in options.items() if value is not None}
    try:
        values = by_name("balance: ", wanted, known.keys())
    except UsageError as error:
        remedy = error.remedy.replace("-", "_")  # did you mean global_batch?
        raise TypeError(f"{error.message}: {remedy}") from None
    typed: dict[str, Any] = {param.name: param.default for param in loaded.params}
    for flag, value in values.items():
        typed[str(known[flag].name)] = as_typed(known[flag], value)
    typed["model"] = _name(build, "build")
    typed["data"] = _name(data, "data")
    if watch is not None or typed["quiet"]:
        typed["quiet"] = True
        typed["watch"] = watch or _ignore
    try:
        plan: Plan = with_options(command, common)(**typed)
    except Interrupted:
        raise KeyboardInterrupt from None
    except GpubalanceError as error:
        error.message = as_arguments(error.message, known)
        if not error.remedy.startswith("gpubalance "):  # which is a command to type
            error.remedy = as_arguments(error.remedy, known)
        raise
    return plan


def as_arguments(text: str, known: Mapping[str, Any]) -> str:
    """A text whose options of the command line are named as arguments: `output=` for `-o`."""
    text = re.sub(r"(?<!\S)-o\b", "output=", text)
    for flag, option in known.items():
        name = flag.replace("-", "_")
        shown = f"{name}=True" if getattr(option, "is_flag", False) else f"{name}="
        # A value follows: FILE, 8 or 'x'
        text = re.sub(rf"--{re.escape(flag)}(?![\w-])( (?=[A-Z0-9']))?", shown, text)
    return text


def _ignore(event: Event) -> None:
    """A listener that shows nothing."""


def _name(value: object, argument: str) -> str | None:
    return (
        value if value is None or isinstance(value, str) else name_of(value, argument)
    )


def name_of(function: object, argument: str) -> str:
    """`train.py:build`, or `package.module:build` for a package: the name for --model and --data.

    Raises BadInput unless each worker can import the function: it must be at the top level of a
    file.
    """
    name = str(getattr(function, "__qualname__", ""))
    home = str(getattr(function, "__module__", ""))
    module = sys.modules.get(home)
    path = getattr(module, "__file__", None)
    code = getattr(function, "__code__", None)
    is_from_prompt = getattr(code, "co_filename", "").startswith("<")
    is_at_top = callable(function) and getattr(module, name, None) is function
    if path is None or is_from_prompt or not is_at_top:
        shown = name or f"a value of type {type(function).__name__}"
        raise BadInput(
            f"{argument} must be a function at the top level of a file, because each "
            f"worker imports it; {shown} is not",
            remedy="move it to a file of its own, train.py, and import it here: `from "
            "train import …`",
        )
    spec = getattr(module, "__spec__", None)  # None of a script
    place = spec.name if spec else home
    if "." not in place:
        place = os.path.relpath(Path(path).resolve())
    return f"{place}:{name}"
