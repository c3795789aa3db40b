"""Reads a command line with lists as people write them: `--gpus 0 1` or `--gpus 0 --gpus 1`."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from typer import Typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.exceptions import TyperException
from typer.main import get_command

from gpubalance.errors import UsageError

_NUMBER = re.compile(r"-\d")
_TYPED = "gpubalance.typed"

# Each fits into a line of the program's help.
GROUPS = {
    "Measure": {
        "check": "Check in seconds whether a model and its data can be measured.",
        "probe": "Measure each device alone, at all batch sizes that fit.",
        "balance": "Find the best split and prove it by a measurement.",
        "plan": "Compute the best split from a probe, without any device.",
        "run": "Train with a given split, and show where the time goes.",
        "independent": "Train a model on each device, alone and all at once.",
        "layers": "Cut a model that no device can hold into stages on several.",
    },
    "Train": {
        "launch": "Run your training script on the devices of a plan.",
        "queue": "Run many commands, one at a time on each device.",
    },
    "Results": {
        "compare": "Compare results: faster, slower, or no clear difference.",
        "report": "Show results as a page with charts, as pictures, or as tables.",
    },
    "Machine and manual": {
        "devices": "List the devices, and why any of them can't be used.",
        "doctor": "Check driver, libraries and GPUs, and show how to fix them.",
        "guide": "Read the manual.",
    },
}
COMMANDS = tuple(itertools.chain(*GROUPS.values()))


class Command(TyperCommand):
    """A command by its name.

    Its module, `gpubalance.cli.NAME`, is loaded when more than its summary is asked for. It takes
    lists as people write them, and completes them: Typer knows one value for an option.
    """

    def __init__(self, name: str, summary: str, group: str | None = None) -> None:
        super().__init__(
            name,
            # The words after the name of a script to launch are the script's own.
            context_settings={"allow_interspersed_args": name != "launch"},
            short_help=summary,
            add_help_option=False,
            rich_markup_mode="rich",
            rich_help_panel=group,
        )
        # So that __getattr__ is asked for them
        del self.params, self.callback, self.help

    def __getattr__(self, name: str) -> Any:
        if name not in ("params", "callback", "help"):
            raise AttributeError(name)
        from gpubalance.cli.config import common
        from gpubalance.cli.parameters import with_options

        function = getattr(import_module(f"gpubalance.cli.{self.name}"), str(self.name))
        alone = Typer(add_completion=False)
        alone.command()(with_options(function, common))
        loaded = get_command(alone)
        self.params, self.callback = loaded.params, loaded.callback
        for param in self.params:
            # Whose Python type the help would show, such as <list[Path]>.
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = _no_type
        self.help = f"{self.short_help}\n\n{loaded.help}"
        return vars(self)[name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments.

        For a completion the words come as the shell has cut them; see `shell_complete`.
        """
        if ctx.resilient_parsing:
            # Bash cuts --simulate=2 into three
            args = [word for word in args if word != "="]
            ctx.meta[_TYPED] = tuple(args)
        try:
            return super().parse_args(ctx, spread(args, self._lists))
        except TyperException:
            # An argument may be missing as a list took it: `queue --gpus 0 1 trials.txt`.
            if (
                self._lists
                and args
                and not args[-1].startswith("-")
                and not args[-1].isdecimal()
            ):
                argument_first = [args[-1], *args[:-1]]
                with suppress(TyperException):
                    return super().parse_args(ctx, spread(argument_first, self._lists))
            raise

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Raises UsageError if -o would overwrite a file that it reads."""
        output = ctx.params.get("output")
        # Path.is_file raises for a name that is too long.
        if output is not None and os.path.isfile(output):  # noqa: PTH113
            named = _files_named(
                [value for value in ctx.params.values() if value is not output]
            )
            if output.resolve() in named:
                raise UsageError(
                    f"-o {output} is a file that {ctx.info_name} reads",
                    remedy="give another -o",
                )
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage without braces: `compare [OPTIONS] RESULT.json...`."""
        return [
            piece.strip("{}").replace("}", "")
            for piece in super().collect_usage_pieces(ctx)
        ]

    @property
    def _lists(self) -> set[str]:
        """The options that take several values."""
        names: set[str] = set()
        for param in self.params:
            if isinstance(param, TyperOption) and param.multiple:
                names.update(param.opts)
        return names

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Offers flags, or values of the last flag where Typer does not see that they are its."""
        typed: tuple[str, ...] = ctx.meta[_TYPED]
        flag = next((word for word in reversed(typed) if word.startswith("-")), "")
        values_follow = flag in self._lists or typed[-1:] == (flag,)
        if values_follow and not incomplete.startswith("-"):
            for param in self.params:
                if (
                    isinstance(param, TyperOption)
                    and flag in param.opts
                    and not param.is_flag
                ):
                    return param.shell_complete(ctx, incomplete)
        return super().shell_complete(ctx, incomplete or "-")


def _no_type(ctx: Any) -> None:
    """What the help shows as the Python type of an argument."""


def _files_named(values: Sequence[Any]) -> set[Path]:
    """The files that these values name, also as `file.py:function`."""
    files = set()
    for value in values:
        words = value if isinstance(value, list | tuple) else [value]
        for word in map(str, words):
            files.add(Path(word).resolve())
            files.add(Path(word.rpartition(":")[0]).resolve())
    return files


def spread(arguments: Sequence[str], lists: Container[str]) -> list[str]:
    """The arguments with a list option before each of its values, as Typer wants them.

    Its values end at the next option; `-5` is a value, so that the error says what is wrong with
    it.
    """
    words: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*words, argument, *rest]
        name, equals, value = argument.partition("=")
        values = [value] if equals else []
        while (
            name in lists
            and rest
            and (not rest[0].startswith("-") or _NUMBER.match(rest[0]))
        ):
            values.append(rest.pop(0))
        words += [f"{name}={value}" for value in values] or [name]
    return words
