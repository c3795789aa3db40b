"""Explains a wrong command line with one that works."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from typing import Any

from gpubalance.cli.next_command import program
from gpubalance.errors import UsageError

_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_MAIN = "balance"
_UNITS = {"int": {"k": 1000, "M": 10**6}, "float": {"s": 1, "m": 60, "min": 60, "h": 3600}}
# What people write elsewhere, and what it is called here: the first of these options that the command has.
_OPTIONS_MEANT = {
    **dict.fromkeys(("--batch", "--batch-size"), ("--batches", "--global-batch", "--max-batch")),
    "--epochs": ("--epoch",),
    **dict.fromkeys(("--device", "--devices"), ("--gpus",)),
    "--timeout": ("--time-limit",),
}
_VALUES_MEANT = {
    **dict.fromkeys(("fp16", "float16", "half", "mixed", "amp"), "mixed_float16"),
    **dict.fromkeys(("bf16", "bfloat16"), "mixed_bfloat16"),
    **dict.fromkeys(("fp32", "single"), "float32"),
}
_NOTHING_MEANT = ("auto", "max", "best", "none")
_ALIKE = 0.75


def meant(option: str, fault: Any, can_be_left_out: bool) -> str:
    """What to type instead of a value that pydantic does not take; empty if that can't be guessed."""
    given, kind = str(fault["input"]), fault["type"].partition("_")[0]
    if kind == "literal":
        choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        near = [_VALUES_MEANT.get(given.lower(), ""), *difflib.get_close_matches(given, choices, n=1)]
        return next((f"did you mean {option} {one}?" for one in near if one in choices), "")
    number = _number(given, kind) if kind in _UNITS else ""
    if number:
        return f"write {option} {number}"
    return f"leave {option} out" if can_be_left_out and given in _NOTHING_MEANT else ""


def _number(text: str, kind: str) -> str:
    """The number meant by `5e4`, `50,000` and `50k`, or the seconds of `10m`; empty if it is none."""
    plain = text.replace(",", "").replace("_", "").replace(" ", "")
    found = re.fullmatch(rf"(\d+(?:\.\d+)?(?:e\d)?)({'|'.join(_UNITS[kind])})?", plain)
    if found is None:
        return ""
    number = float(found[1]) * _UNITS[kind].get(found[2] or "", 1)
    return f"{number:.0f}" if number.is_integer() else f"{number:g}" if kind == "float" else ""


def usage_error(error: Any) -> UsageError | None:
    """Our error for one of Typer's; None for no command at all, when the help was printed."""
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:
        return None
    context = getattr(error, "ctx", None)
    typed = context.command_path if context else f"{program()} {_first_word()}"
    message, remedy = _option(error) or _argument(error, message) or (message, "")
    return UsageError(message, remedy=remedy or f"{typed} --help")


def _first_word() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _option(error: Any) -> tuple[str, str] | None:
    """The fault and remedy for an unknown option, one without its value, or one placed before the command."""
    name = getattr(error, "option_name", None)
    if name is None:
        return None
    if "requires an argument" in error.message:
        return f"{name} needs a value", ""
    if "does not take a value" in error.message:
        return f"{name} takes no value", f"write {name} alone"
    commands = _options_of_all(error.ctx)
    own = commands.pop(error.ctx.info_name, []) if error.ctx else []
    having = [command for command, names in commands.items() if name in names]
    if not own and having:
        command = next((word for word in sys.argv[1:] if word in having), _MAIN if _MAIN in having else having[0])
        return f"no such option: {name}", f"options come after the command: {program()} {command} {name} …"
    return f"no such option: {name}", _nearest(name, own, commands)


def _options_of_all(context: Any) -> dict[str, list[str]]:
    """The long options of each command."""
    commands = context.find_root().command.commands if context else {}
    params = {name: [(*p.opts, *p.secondary_opts) for p in command.params] for name, command in commands.items()}
    return {name: [one for names in of for one in names if one.startswith("--")] for name, of in params.items()}


def _nearest(name: str, own: list[str], others: Mapping[str, list[str]]) -> str:
    """The option that was meant, by its meaning, its beginning or its letters, of this command or another one."""
    near = [one for one in _OPTIONS_MEANT.get(name, ()) if one in own][:1] or [o for o in own if o.startswith(name)]
    every = dict.fromkeys(one for names in others.values() for one in names)
    if not near and name not in every:
        near = difflib.get_close_matches(name, own, n=1, cutoff=_ALIKE)
    if near:
        return f"did you mean {' or '.join(near)}?"
    for theirs in [name] if name in every else difflib.get_close_matches(name, every, n=1, cutoff=_ALIKE):
        having = [command for command, names in others.items() if theirs in names]
        return f"{theirs} is an option of {', '.join(having)}: {program()} {having[0]} {theirs} …"
    return ""


def _argument(error: Any, message: str) -> tuple[str, str] | None:
    """The fault and remedy for a missing argument, and for a word that stands alone: its option was forgotten."""
    found = _EXTRA.search(message)
    if error.ctx is None or (found is None and not hasattr(error, "param_type")):
        return None
    command = error.ctx.info_name
    if found is None:
        return f"{command} needs a {error.param.metavar}", ""
    word = (found[1].split() or ["''"])[0]
    params = {name: param for param in error.ctx.command.params for name in param.opts}
    kinds = ((".json", "--plan"), (".toml", "--simulate"), (".py", "--model"), (".keras", "--model"))
    names = [name for end, name in kinds if word.partition(":")[0].endswith(end)]
    names += ["--gpus"] if word.isdecimal() else []
    near = next((f"did you mean {name} {found[1]}?" for name in names if name in params), "")
    before = sys.argv[sys.argv.index(word) - 1] if word in sys.argv else ""
    if not near and getattr(params.get(before), "is_flag", False):
        return f"{before} takes no value", f"write {before} alone"
    return f"{command} takes no {word} without an option before it", near
