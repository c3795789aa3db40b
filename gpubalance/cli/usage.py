"""A wrong command line, told in our words and with the line that works: Typer's are of Python's types."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from typing import Any

from typer import BadParameter
from typer.exceptions import TyperException

from gpubalance.cli.next_command import program

_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_MAIN = "balance"
_TYPES = {"int": "a whole number", "float": "a number"}
_BOUNDS = {"greater_than_equal": ("ge", "or more"), "less_than_equal": ("le", "or less")}


def usage_text(error: TyperException, place: str) -> str:
    """What is wrong and what to type instead; empty for no command at all, where the help was printed.

    `place` says where a value was given that is not on the command line.
    """
    wrong = getattr(error, "format_message", lambda: str(error))()
    if not wrong:
        return ""
    wrong, right = _value(error) or _option(error) or _argument(error, wrong) or (wrong, "")
    return "\n".join([f"error: {wrong}", f"  → {right or _help(error)}", *([f"    {place}"] if place else [])])


def _value(error: Any) -> tuple[str, str] | None:
    """Of a value that its option does not take."""
    if not isinstance(error, BadParameter) or error.param is None:
        return None
    if hasattr(error, "param_type"):  # Typer's MissingParameter, which it does not export
        return (f"{error.ctx.info_name} needs a {error.param.metavar}", "") if error.ctx else None
    option = next((name for name in error.param.opts if name.startswith("--")), error.param.opts[0])
    faults: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's, which Typer has made it of
    if not faults:
        return f"{option}: {error.message}", ""
    fault = faults[0]
    kind, given = fault["type"], fault["input"]
    of = _TYPES.get(kind.partition("_")[0])
    plain = str(given).replace(",", "").replace("_", "").replace(" ", "")
    if of is not None:
        return f"{option} takes {of}, not {given!r}", f"write {option} {plain}" if plain.isdecimal() else ""
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        return f"{option} takes {fault['ctx'][key]} {word}, not {given}", ""
    return f"{option}: {fault['msg'].removeprefix('Value error, ').rstrip('.')}", ""


def _option(error: Any) -> tuple[str, str] | None:
    """Of an option that is not there, or has no value. One of a command before the command is told where it belongs."""
    name = getattr(error, "option_name", None)
    if name is None:
        return None
    if "requires an argument" in error.message:
        return f"{name} needs a value", ""
    near = getattr(error, "possibilities", None) or []
    nearest = [one for one in near if one.startswith(name)] or difflib.get_close_matches(name, near, n=1)
    commands = _commands(error)
    having = [word for word, command in commands.items() if any(name in param.opts for param in command.params)]
    if having:
        command = next((word for word in sys.argv[1:] if word in having), _MAIN if _MAIN in having else having[0])
        return f"no such option: {name}", f"options come after the command: {program()} {command} {name} …"
    return f"no such option: {name}", f"did you mean {' or '.join(nearest)}?" if nearest else ""


def _argument(error: Any, wrong: str) -> tuple[str, str] | None:
    """Of a word that stands alone: mostly its option was forgotten."""
    found = _EXTRA.search(wrong)
    if found is None or error.ctx is None:
        return None
    word = (found[1].split() or ["''"])[0]
    options = {name for param in error.ctx.command.params for name in param.opts}
    kinds = ((".json", "--plan"), (".toml", "--simulate"), (".py", "--model"), (".keras", "--model"))
    meant = [option for end, option in kinds if option in options and word.partition(":")[0].endswith(end)]
    meant += ["--gpus"] if word.isdecimal() and "--gpus" in options else []
    return (
        f"{error.ctx.info_name} takes no {word} without an option before it",
        f"did you mean {meant[0]} {found[1]}?" if meant else "",
    )


def _help(error: Any) -> str:
    """The command whose help says it all."""
    context = getattr(error, "ctx", None)
    if context is None:  # as of an option that has no value
        return f"{program()} {next((word for word in sys.argv[1:] if not word.startswith('-')), '')} --help"
    return f"{context.command_path} --help"


def _commands(error: Any) -> Mapping[str, Any]:
    context = getattr(error, "ctx", None)
    return getattr(context.command, "commands", {}) if context is not None else {}
