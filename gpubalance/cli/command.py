"""How a command line is read: lists as people write them, `--gpus 0 1`, `--gpus 0,1` or `--gpus 0 --gpus 1`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption

from gpubalance.errors import UsageError

LIST_OPTIONS = {"--gpus": "0 1", "--batches": "820 568", "--micro-batches": "410 568"}  # each with an example
_NUMBER = re.compile(r"-\d")
_TYPED = "gpubalance.typed"


class Command(TyperCommand):
    """Takes lists as people write them, and completes them: Typer knows one value for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Of a line that is not finished the words come as the shell has cut them; see `shell_complete`."""
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, join_lists(args))
        args = [word for word in args if word != "="]  # bash cuts --simulate=2 into three
        ctx.meta[_TYPED] = tuple(args)
        with contextlib.suppress(UsageError):  # nothing is typed after it yet
            args = join_lists(args)
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Flags; or, where Typer does not see which flag the word is a value of, what that one takes."""
        typed: tuple[str, ...] = ctx.meta[_TYPED]
        last = next((word for word in reversed(typed) if word.startswith("-")), "")
        values_follow = last in LIST_OPTIONS or typed[-1:] == (last,)
        for option in self.params if values_follow and not incomplete.startswith("-") else ():
            if isinstance(option, TyperOption) and last in option.opts and not option.is_flag:
                return option.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete or "-")


def join_lists(arguments: Sequence[str]) -> list[str]:
    """The arguments with each list option's values joined by commas, as Typer takes one value for an option.

    Values go on until the next option; `-5` is a value, so that the error says what is wrong with it. Raises UsageError
    for a list option without a value.
    """
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*joined, argument, *rest]
        name, equals, value = argument.partition("=")
        if name not in LIST_OPTIONS:
            joined.append(argument)
            continue
        found = [value] if equals else []
        while rest and (not rest[0].startswith("-") or _NUMBER.match(rest[0])):
            found.append(rest.pop(0))
        if not any(v.strip(" ,") for v in found):
            raise UsageError(f"{name} needs a value", remedy=f"for example {name} {LIST_OPTIONS[name]}")
        joined.append(f"{name}={','.join(found)}")
    return joined
