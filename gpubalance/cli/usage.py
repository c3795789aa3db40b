"""Explains a wrong command line in our words and with one that works: Typer speaks of Python's types."""

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
_OFF = ("off", "false", "no", "0")
_ALIKE = 0.75
_BOUNDS = {"greater_than_equal": ("ge", "or more"), "less_than_equal": ("le", "or less")}


def usage_text(error: TyperException, place: str) -> str:
    """What is wrong and what to type instead; empty for no command at all, when the help was printed.

    `place` says where a value that is not on the command line came from.
    """
    wrong = getattr(error, "format_message", lambda: str(error))()
    if not wrong:
        return ""
    wrong, right = _value(error) or _option(error) or _argument(error, wrong) or (wrong, "")
    return "\n".join([f"error: {wrong}", f"  → {right or _help(error)}", *([f"    {place}"] if place else [])])


def _value(error: Any) -> tuple[str, str] | None:
    """The fault and remedy for a value that its option does not take."""
    if not isinstance(error, BadParameter) or error.param is None:
        return None
    if hasattr(error, "param_type"):  # Typer's MissingParameter, which it does not export
        return (f"{error.ctx.info_name} needs a {error.param.metavar}", "") if error.ctx else None
    option = next((name for name in error.param.opts if name.startswith("--")), error.param.opts[0])
    faults: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's errors, which Typer has wrapped
    if not faults:
        return f"{option}: {error.message}", ""
    fault = faults[0]
    kind, given = fault["type"], fault["input"]
    base = kind.partition("_")[0]
    if base in _TYPES:
        meant = _number(str(given), base)
        out = f"leave {option} out" if error.param.default is None and given in ("auto", "max", "best", "none") else ""
        return f"{option} takes {_TYPES[base]}, not {given!r}", f"write {option} {meant}" if meant else out
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        return f"{option} takes {fault['ctx'][key]} {word}, not {given}", ""
    return f"{option}: {fault['msg'].removeprefix('Value error, ').rstrip('.')}", _choice(option, fault["msg"])


def _choice(option: str, message: str) -> str:
    """A guess for a word that is not among the choices in Typer's message; empty for any other message."""
    given, *choices = re.findall(r"'([^']*)'", message) or [""]
    near = [_VALUES_MEANT.get(given.lower(), ""), *difflib.get_close_matches(given, choices, n=1)]
    meant = next((one for one in near if one in choices), "")
    return f"did you mean {option} {meant}?" if meant else ""


def _number(text: str, kind: str) -> str:
    """The number meant by `5e4`, `50,000` and `50k`, or the seconds of `10m`; empty if it is none."""
    plain = text.replace(",", "").replace("_", "").replace(" ", "")
    found = re.fullmatch(rf"(\d+(?:\.\d+)?(?:e\d)?)({'|'.join(_UNITS[kind])})?", plain)
    if found is None:
        return ""
    number = float(found[1]) * _UNITS[kind].get(found[2] or "", 1)
    return f"{number:.0f}" if number.is_integer() else f"{number:g}" if kind == "float" else ""


def _option(error: Any) -> tuple[str, str] | None:
    """The fault and remedy for an unknown option, one without its value, or one placed before the command."""
    name = getattr(error, "option_name", None)
    if name is None:
        return None
    if "requires an argument" in error.message:
        return f"{name} needs a value", ""
    if "does not take a value" in error.message:
        return f"{name} takes no value", f"write {name} alone"
    commands = _commands(error)
    having = [word for word, command in commands.items() if any(name in param.opts for param in command.params)]
    if having:
        command = next((word for word in sys.argv[1:] if word in having), _MAIN if _MAIN in having else having[0])
        return f"no such option: {name}", f"options come after the command: {program()} {command} {name} …"
    return f"no such option: {name}", _nearest(error.ctx, name)


def _nearest(context: Any, name: str) -> str:
    """The option that was meant, by its meaning, its beginning or its letters, of this command or another one."""
    if context is None:
        return ""
    own = _names(context.command)
    others = {word: _names(command) for word, command in context.find_root().command.commands.items()}
    near = [one for one in _OPTIONS_MEANT.get(name, ()) if one in own][:1]
    near = near or [one for one in own if one.startswith(name)]
    meant = "" if near else next((name for names in others.values() if name in names), "")
    near = near or ([] if meant else difflib.get_close_matches(name, own, n=1, cutoff=_ALIKE))
    if near:
        return f"did you mean {' or '.join(near)}?"
    every = [*dict.fromkeys(one for names in others.values() for one in names)]
    meant = meant or next(iter(difflib.get_close_matches(name, every, n=1, cutoff=_ALIKE)), "")
    having = [word for word, names in others.items() if meant in names]
    if not having:
        return ""
    return f"{meant} is an option of {', '.join(having)}: {program()} {having[0]} {meant} …"


def _names(command: Any) -> list[str]:
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]


def _argument(error: Any, wrong: str) -> tuple[str, str] | None:
    """The fault and remedy for a word that stands alone: usually its option was forgotten."""
    found = _EXTRA.search(wrong)
    if found is None or error.ctx is None:
        return None
    word = (found[1].split() or ["''"])[0]
    options = {name for param in error.ctx.command.params for name in param.opts}
    kinds = ((".json", "--plan"), (".toml", "--simulate"), (".py", "--model"), (".keras", "--model"))
    meant = [option for end, option in kinds if option in options and word.partition(":")[0].endswith(end)]
    meant += ["--gpus"] if word.isdecimal() and "--gpus" in options else []
    switches = {name for param in error.ctx.command.params if getattr(param, "is_flag", False) for name in param.opts}
    before = sys.argv[sys.argv.index(word) - 1] if word in sys.argv else ""
    if before in switches and not meant:
        return f"{before} takes no value", f"leave {before} out" if word in _OFF else f"write {before} alone"
    return (
        f"{error.ctx.info_name} takes no {word} without an option before it",
        f"did you mean {meant[0]} {found[1]}?" if meant else "",
    )


def _help(error: Any) -> str:
    """The command whose help explains it."""
    context = getattr(error, "ctx", None)
    if context is None:  # for example an option without a value
        return f"{program()} {next((word for word in sys.argv[1:] if not word.startswith('-')), '')} --help"
    return f"{context.command_path} --help"


def _commands(error: Any) -> Mapping[str, Any]:
    context = getattr(error, "ctx", None)
    return getattr(context.command, "commands", {}) if context is not None else {}
