"""`gpubalance.balance`: the command, for functions of the calling script."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gpubalance.cli import function_name
from gpubalance.cli.balance import balanced
from gpubalance.cli.groups import grouped
from gpubalance.errors import BadInput, Interrupted, UsageError
from gpubalance.settings.told import fault_text
from gpubalance.text import clean

if TYPE_CHECKING:
    from gpubalance.jobs.events import Event, Watch
    from gpubalance.results.plan import Plan

_NOT_OPTIONS = {"model", "data", "watch", "json", "redact", "dry_run"}  # passed separately, or only for a terminal
_NUMBERS_TOO = ConfigDict(coerce_numbers_to_str=True)  # `gpus=[0, 1]`, `simulate=2`


def balance(build: object, data: object, watch: Watch | None, options: Mapping[str, Any]) -> Plan:
    """Runs the command; `gpubalance.balance` documents it."""
    call = grouped(balanced)
    parameters = inspect.signature(call).parameters
    given = {name: parameter.default for name, parameter in parameters.items()}
    given["model"] = function_name.model(build) if isinstance(build, str) else name_of(build, "build")
    given["data"] = function_name.data(data) if data is None or isinstance(data, str) else name_of(data, "data")
    known = {name.removesuffix("_"): name for name in parameters if name not in _NOT_OPTIONS}
    for name, value in options.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            raise TypeError(f"balance() takes no {name!r}" + "".join(f": did you mean {one!r}?" for one in nearest))
        given[known[name]] = _value(name, parameters[known[name]].annotation, value)
    if watch is not None or given["quiet"]:
        given |= {"quiet": True, "watch": watch or _unseen}
    try:
        plan: Plan = call(**given)
    except Interrupted:
        raise KeyboardInterrupt from None
    return plan


def _unseen(event: Event) -> None:
    del event


def _value(name: str, annotation: Any, value: object) -> Any:
    """The value as the command line would pass it. Raises UsageError if the command line would refuse it."""
    kind, option = get_args(annotation)
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        found = TypeAdapter(kind, config=_NUMBERS_TOO).validate_python(plain)
        if option.min is not None and not option.min <= found <= option.max:
            raise typer.BadParameter(f"from {option.min} to {option.max}")
        return option.callback(found) if option.callback else found
    except ValidationError as error:
        raise UsageError(f"balance: {name}{fault_text(error.errors()[0])}") from None
    except typer.BadParameter as error:
        raise UsageError(f"balance: {name}={clean(repr(value), 40)}: {error.message}") from None


def name_of(function: object, what: str) -> str:
    """`train.py:build`, or `package.module:build` for a package: the name for --model and --data.

    Raises BadInput unless each worker can import the function: it must be at the top level of a file.
    """
    name, outer = str(getattr(function, "__name__", "")), str(getattr(function, "__qualname__", ""))
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    spec = getattr(module, "__spec__", None)  # None for a script
    place = spec.name if spec else str(getattr(function, "__module__", ""))
    path = getattr(module, "__file__", None)
    typed = getattr(getattr(function, "__code__", None), "co_filename", "").startswith("<")
    why, remedy = "", "write it into a file of its own, train.py, and `from train import …` here"
    if not callable(function) or not name:
        why = f"a value of type {type(function).__name__} is not one"
        remedy = "give the function itself, not what it returns: gpubalance.balance(build, dataset)"
    elif name == "<lambda>":
        why = "a lambda has no name"
    elif path is None or typed:
        why = f"{name} was typed in a notebook or at a prompt"
    elif name != outer:
        why = f"{name} stands inside {outer.rpartition('.')[0].removesuffix('.<locals>')}"
    elif getattr(module, name, None) is not function:
        why = f"{path} has another {name}"
    if why or path is None:
        raise BadInput(
            f"{what} must be a function at the top level of a file, which each worker imports: {why}",
            remedy=remedy,
        )
    return f"{place if '.' in place else _near(Path(path))}:{name}"


def _near(path: Path) -> Path:
    """The path as one would type it in the current folder."""
    with suppress(ValueError):
        return path.resolve().relative_to(Path.cwd().resolve())
    return path.resolve()
