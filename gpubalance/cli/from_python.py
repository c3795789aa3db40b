"""`gpubalance.balance`: the command, for functions of the calling script."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubalance.cli.balance import balance as command
from gpubalance.cli.command import Command
from gpubalance.cli.config import as_typed, by_name, common, options_of
from gpubalance.cli.parameters import with_options
from gpubalance.errors import BadInput, Interrupted, UsageError

if TYPE_CHECKING:
    from gpubalance.jobs.events import Watch
    from gpubalance.results.plan import Plan

# Passed separately, or only for a terminal.
_NOT_OPTIONS = {"model", "data", "json", "dry-run", "verbose"}


def balance(build: object, data: object, watch: Watch | None, options: Mapping[str, Any]) -> Plan:
    """Runs the command; `gpubalance.balance` documents it."""
    loaded = Command("balance", "")
    known = {flag: one for flag, one in options_of(loaded) if flag not in _NOT_OPTIONS}
    try:
        given = by_name(
            "balance: ",
            {name: one for name, one in options.items() if one is not None},
            known.keys(),
        )
    except UsageError as error:
        raise TypeError(f"{error.message}: {error.remedy}") from None
    typed: dict[str, Any] = {param.name: param.default for param in loaded.params}
    typed |= {known[flag].name: as_typed(known[flag], value) for flag, value in given.items()}
    for option, argument, value in (("model", "build", build), ("data", "data", data)):
        typed[option] = (
            value if value is None or isinstance(value, str) else name_of(value, argument)
        )
    if watch is not None or typed["quiet"]:
        typed |= {"quiet": True, "watch": watch or (lambda _: None)}
    try:
        plan: Plan = with_options(command, common)(**typed)
    except Interrupted:
        raise KeyboardInterrupt from None
    return plan


def name_of(function: object, what: str) -> str:
    """`train.py:build`, or `package.module:build` for a package: the name for --model and --data.

    Raises BadInput unless each worker can import the function: it must be at the top level of a
    file.
    """
    name, home = (str(getattr(function, one, "")) for one in ("__qualname__", "__module__"))
    module = sys.modules.get(home)
    # No spec: a script.
    spec, path = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    place = spec.name if spec else home
    # At a prompt.
    typed = getattr(getattr(function, "__code__", None), "co_filename", "").startswith("<")
    if (
        path is None
        or typed
        or not callable(function)
        or getattr(module, name, None) is not function
    ):
        raise BadInput(
            f"{what} must be a function at the top level of a file, which each worker imports, and "
            f"{name or f'a value of type {type(function).__name__}'} is not",
            remedy="write it into a file of its own, train.py, and `from train import …` here",
        )
    return f"{place if '.' in place else os.path.relpath(Path(path).resolve())}:{name}"
