"""The program and its commands as Typer runs them: each takes `--config`, and completes lists."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException

from gpubalance.cli.lists import LIST_OPTIONS, join_lists
from gpubalance.errors import BadInput, GpubalanceError, PlanMismatch, UsageError

if TYPE_CHECKING:
    from typer._click import Parameter

_READY = "gpubalance.ready-to-complete"
_MANY = 1 << 20


@dataclass
class Given:
    """What was asked for, as far as it is known when an error is told: the context's object."""

    context: typer.Context | None = None
    config: Path | None = None

    def switched(self, name: str) -> bool:
        """Whether a switch is on, by the command line or the config."""
        return self.context is not None and bool(self.context.params.get(name))

    def explain(self, error: GpubalanceError | TyperException) -> None:
        """Adds to an error about what was asked for which of it the config says: `--batches is from FILE`."""
        if isinstance(error, UsageError | BadInput | PlanMismatch):
            named = self._from_config(f"{error.message} {error.remedy}")
            if isinstance(error, UsageError):
                named = named or self._from_config()
            error.remedy = "\n".join(filter(None, [error.remedy, self._place(named)]))
        elif isinstance(error, BadParameter):
            place = self._place(self._from_config(error.format_message()))
            error.message += f" ({place})" if place else ""

    def _from_config(self, text: str | None = None) -> list[str]:
        """The flags that the config gives; those that a text names."""
        from gpubalance.cli.config_file import long_name

        context = self.context
        if context is None:
            return []
        flags = [
            long_name(param)
            for param in context.command.params
            # Typer's ParameterSource, which it does not export
            if isinstance(param, TyperOption) and str(context.get_parameter_source(param.name)).endswith("DEFAULT_MAP")
        ]
        return [flag for flag in flags if text is None or re.search(rf"(?<![\w-]){flag}(?![\w-])", text)]

    def _place(self, flags: list[str]) -> str:
        return f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} from {self.config}" if flags else ""


def take_config(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of --config: what the file says becomes the default of each flag, beneath the command line."""
    if context.resilient_parsing:  # a completion, or a help text
        return path
    given = context.ensure_object(Given)
    given.context = context
    if path is not None:
        from gpubalance.cli.config_file import defaults

        given.config = path
        program = cast("TyperGroup", context.find_root().command)
        found = defaults(path, cast("Mapping[str, TyperCommand]", program.commands))
        context.default_map = found if context.parent is None else found[cast("str", context.info_name)]
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take flags from a TOML file, where they are not given here.",
        callback=take_config,
        is_eager=True,
    ),
]


class Program(TyperGroup):
    """Gives every command the --config that it has itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        (config,) = (option for option in self.params if option.name == "config")
        option = copy.copy(config)
        option.expose_value = False  # it is done when the command is called
        for command in self.commands.values():
            command.params.append(option)


class Command(TyperCommand):
    """Completes the second value of `--gpus 0 1` too, and flags where nothing is typed yet."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever; but the words of a line that is not finished come as the shell has cut them."""
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        words = [word for word in args if word != "="]  # bash cuts --simulate=2 into three
        with contextlib.suppress(UsageError):  # nothing is typed after it yet
            words = join_lists(words)
        rest = super().parse_args(ctx, words)
        ctx.meta[_READY] = "after =" if args[-1:] == ["="] else "after a word"
        return rest

    def get_params(self, ctx: Any) -> list[Parameter]:
        """Once the words are read, what is typed next belongs to a list option however many values it has.

        By `nargs` Typer looks back for the option that a value is of.
        """
        params, ready = super().get_params(ctx), ctx.meta.get(_READY)
        if not ready:
            return params
        one = 2 if ready == "after =" else 1
        return [_looking_back(param, _MANY if set(param.opts) & set(LIST_OPTIONS) else one) for param in params]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return super().shell_complete(ctx, incomplete or "-")


class App(typer.Typer):
    """Makes every command a Command."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """As Typer's."""
        return super().command(name, **{"cls": Command, **settings})


def _looking_back(param: Parameter, words: int) -> Parameter:
    if not isinstance(param, TyperOption):
        return param
    copied = copy.copy(param)
    copied.nargs = words
    return copied
