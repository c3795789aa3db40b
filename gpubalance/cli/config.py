"""The options that every command has. `--config FILE` gives the others; the command line overrides.

quiet = true                # for every command that has the flag
[run]                       # for `gpubalance run`; overrides what is given for every command
gpus = [0, 1]
global-batch = 1388         # a flag's long name without its dashes, or global_batch
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from gpubalance.errors import BadInput, GpubalanceError, PlanMismatch, UsageError
from gpubalance.text import clean

_REMEDY = "--config takes a TOML file: see gpubalance guide shell"


@dataclass
class Invocation:
    """What the user asked for, as far as it is known when an error is shown.

    It is Typer's context object.
    """

    context: typer.Context | None = None
    config: Path | None = None

    @property
    def verbose(self) -> bool:
        """Whether --verbose is on, from the command line or the config."""
        return self.context is not None and bool(self.context.params.get("verbose"))

    def explain(self, error: GpubalanceError) -> None:
        """Adds to an error about an option that its value is from the config."""
        if self.context is None or not isinstance(
            error, UsageError | BadInput | PlanMismatch
        ):
            return
        mentioned = re.findall(r"--[\w-]+", f"{error.message} {error.remedy}")
        from_config = []
        for flag, option in options_of(self.context.command):
            source = self.context.get_parameter_source(str(option.name))
            # Of Typer's ParameterSource, which it does not export
            if str(source).endswith("_MAP"):
                from_config.append(f"--{flag}")
        flags = [flag for flag in from_config if flag in mentioned] or from_config
        if flags:
            error.remedy = (
                f"{error.remedy}\nfrom {self.config}: {', '.join(flags)}".strip()
            )


def take(context: typer.Context, path: Path | None) -> None:
    """The callback of --config: makes the file's values the defaults of the flags."""
    if context.resilient_parsing:  # a shell asks for completions
        return
    invocation = context.ensure_object(Invocation)
    invocation.context = context
    if path is not None:
        invocation.config = path
        program = cast("TyperGroup", context.find_root().command)
        by_command = defaults(
            path, cast("Mapping[str, TyperCommand]", program.commands)
        )
        if context.parent is None:
            context.default_map = by_command
        else:
            context.default_map = by_command[cast("str", context.info_name)]


def defaults(
    path: Path, commands: Mapping[str, TyperCommand]
) -> dict[str, dict[str, Any]]:
    """The file's values for each command, by parameter, as a command line has them.

    That is Typer's `default_map`. Raises BadInput for a file that can't be read, and UsageError for
    a key that is no flag, with the nearest flag. Wrong values are left to whatever rejects them on
    the command line.
    """
    from gpubalance.system.files import read_toml

    document = read_toml(path, "config", remedy=_REMEDY)
    # `plan` may also be a flag.
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    values = {key: value for key, value in document.items() if key not in tables}
    options = {name: dict(options_of(command)) for name, command in commands.items()}
    by_name(f"{path}: ", tables, options.keys())
    shared = by_name(f"{path}: ", values, set().union(*options.values()))
    by_command = {}
    for name, known in options.items():
        own = by_name(f"{path}: [{name}] ", tables.get(name, {}), known.keys())
        typed = {}
        for flag, value in (shared | own).items():
            if flag in known:
                typed[str(known[flag].name)] = as_typed(known[flag], value)
        by_command[name] = typed
    return by_command


def options_of(command: Any) -> Iterator[tuple[str, TyperOption]]:
    """Each option of a command that a config may give, under its long name, without dashes."""
    for option in command.params:
        if isinstance(option, TyperOption) and option.name not in ("config", "help"):
            flag = next(name for name in option.opts if name.startswith("--"))
            yield flag.removeprefix("--"), option


def by_name(place: str, values: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """The values by name, with dashes.

    Raises UsageError, which begins with the place, for a name that is not known.
    """
    by_flag = {key.replace("_", "-"): value for key, value in values.items()}
    for name in by_flag.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"there are: {', '.join(sorted(known))}"
        if near:
            remedy = f"did you mean {near[0]}?"
        raise UsageError(
            f"{place}{clean(name, 40)}: no such command or option",
            remedy=remedy,
        )
    return by_flag


def as_typed(option: TyperOption, value: Any) -> Any:
    """The value in a command line's form: text, a list of texts, or a switch's true or false."""
    if option.is_flag:
        return value
    if isinstance(value, Mapping):  # such as margin = {0 = "2GiB"}
        value = ",".join(f"{name}={each}" for name, each in value.items())
    values = value if isinstance(value, list | tuple) else [value]
    # No command line can hold a zero byte, and a path with one can't even be looked for.
    texts = [str(value).replace("\0", "") for value in values]
    return texts if option.multiple else " ".join(texts)


def _show_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        with suppress(SystemExit):  # raised by Rich if the reader of a pipe has gone
            print(ctx.get_help())
        raise typer.Exit


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read options from a TOML file; options given here override it.",
        callback=take,
        is_eager=True,
    ),
]
# Typer's own shows a <bool> beside the option
HelpOption = Annotated[
    bool,
    typer.Option(
        "--help",
        "-h",
        metavar="",
        help="Show this message and exit.",
        callback=_show_help,
        is_eager=True,
    ),
]


def common(
    verbose: Annotated[
        bool,
        typer.Option("--verbose", metavar="", help="Show the traceback of an error."),
    ] = False,
    config: ConfigOption = None,
    help: HelpOption = False,
) -> None:
    """The options of every command, which main() reads."""
