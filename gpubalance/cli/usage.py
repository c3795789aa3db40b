"""Explains a wrong command line with one that works."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any

from gpubalance.cli.next_command import program
from gpubalance.errors import UsageError

_EXTRA = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
# What people write elsewhere, and what it is called here: the first of these options that the command has.
_OPTIONS_MEANT = {
    **dict.fromkeys(("--batch", "--batch-size"), ("--batches", "--global-batch", "--max-batch")),
    **dict.fromkeys(("--device", "--devices"), ("--gpus",)),
    "--timeout": ("--time-limit",),
}
_VALUES_MEANT = {
    **dict.fromkeys(("fp16", "float16", "half", "mixed", "amp"), "mixed_float16"),
    **dict.fromkeys(("bf16", "bfloat16"), "mixed_bfloat16"),
    **dict.fromkeys(("fp32", "single"), "float32"),
}
_NOTHING_MEANT = ("auto", "max", "best", "none")
# The option of a word that stands alone, by its end.
_OWNERS = ((r"\.json", "--plan"), (r"\.toml", "--simulate"), (r"\.(py|keras)(:.*)?", "--model"), (r"\d", "--gpus"))
_ALIKE = 0.75


def meant(option: str, fault: Any, can_be_left_out: bool) -> str:
    """What to type instead of a value that pydantic does not take; empty if that can't be guessed."""
    given = str(fault["input"])
    if fault["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        near = [_VALUES_MEANT.get(given.lower(), ""), *difflib.get_close_matches(given, choices, n=1)]
        return next((f"did you mean {option} {one}?" for one in near if one in choices), "")
    return f"leave {option} out" if can_be_left_out and given in _NOTHING_MEANT else ""


def usage_error(error: Any) -> UsageError | None:
    """Our error for one of Typer's; None for no command at all, when the help was printed."""
    message = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    if not message:
        return None
    context = getattr(error, "ctx", None)
    typed = context.command_path if context else " ".join([program(), *sys.argv[1:2]])
    remedy = f"{typed} --help"
    extra, option = _EXTRA.search(message), getattr(error, "option_name", None)
    if context and option and message.startswith("No such option"):
        message, remedy = error.message, _nearest(option, context) or remedy
    elif context and extra:
        own = _options(context.command)
        names = [name for end, name in _OWNERS if name in own and re.search(f"{end}$", extra[1])]
        remedy = f"did you mean {names[0]} {extra[1]}?" if names else remedy
    return UsageError(message[0].lower() + message[1:], remedy=remedy)


def _options(command: Any) -> list[str]:
    """The long options of a command."""
    return [name for p in command.params for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]


def _nearest(name: str, context: Any) -> str:
    """The option that was meant, by its meaning, its beginning or its letters, of this command or another one."""
    others = {command: _options(one) for command, one in context.find_root().command.commands.items()}
    own = others.pop(context.info_name, [])
    every = dict.fromkeys(one for names in others.values() for one in names)
    near = [one for one in _OPTIONS_MEANT.get(name, ()) if one in own][:1] or [o for o in own if o.startswith(name)]
    if not near and name not in every:
        near = difflib.get_close_matches(name, own, n=1, cutoff=_ALIKE)
    if near:
        return f"did you mean {' or '.join(near)}?"
    theirs = [name] if name in every else difflib.get_close_matches(name, every, n=1, cutoff=_ALIKE)
    having = [command for command, names in others.items() if theirs and theirs[0] in names]
    return f"{theirs[0]} is an option of {', '.join(having)}: {program()} {having[0]} {theirs[0]} …" if having else ""
