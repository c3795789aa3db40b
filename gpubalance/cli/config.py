"""The options that every command has. `--config FILE` is the others' from a TOML file; the command line overrides it.

quiet = true                # for every command that has the flag
[run]                       # for `gpubalance run`; overrides what is given for every command
gpus = [0, 1]
global-batch = 1388         # a flag's long name without its dashes, or global_batch
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from gpubalance.errors import BadInput, GpubalanceError, PlanMismatch, UsageError
from gpubalance.text import clean

_NEVER = ("--config", "--help")
_REMEDY = "--config takes a TOML file: see gpubalance guide shell"


@dataclass
class Given:
    """What the user asked for, as far as it is known when an error is shown. It is Typer's context object."""

    context: typer.Context | None = None
    config: Path | None = None

    def switched(self, name: str) -> bool:
        """Whether a switch is on, from the command line or the config."""
        return self.context is not None and bool(self.context.params.get(name))

    @property
    def simulate(self) -> str | None:
        """The simulated devices that were asked for."""
        found = self.context.params.get("simulate") if self.context else None
        return None if found is None else str(found)

    def explain(self, error: GpubalanceError) -> None:
        """Adds to an error about an option that its value is from the config: `--batches is from FILE`."""
        if self.context is None or not isinstance(error, UsageError | BadInput | PlanMismatch):
            return
        said = f"{error.message} {error.remedy}"
        flags = [
            long_name(param)
            for param in self.context.command.params
            # Typer's ParameterSource, which it does not export
            if isinstance(param, TyperOption) and str(self.context.get_parameter_source(param.name)).endswith("_MAP")
        ]
        named = [flag for flag in flags if re.search(rf"(?<![\w-]){flag}(?![\w-])", said)]
        if isinstance(error, UsageError):
            named = named or flags
        if named:
            place = f"{', '.join(named)} {'is' if len(named) == 1 else 'are'} from {self.config}"
            error.remedy = "\n".join(filter(None, [error.remedy, place]))


def take(context: typer.Context, path: Path | None) -> None:
    """The callback of --config: makes the file's values the defaults of the flags."""
    if context.resilient_parsing:  # a shell asks for completions
        return
    given = context.ensure_object(Given)
    given.context = context
    if path is not None:
        given.config = path
        program = cast("TyperGroup", context.find_root().command)
        found = defaults(path, cast("Mapping[str, TyperCommand]", program.commands))
        context.default_map = found if context.parent is None else found[cast("str", context.info_name)]


def defaults(path: Path, commands: Mapping[str, TyperCommand]) -> dict[str, dict[str, Any]]:
    """The file's values for each command, by parameter, in a command line's form: Typer's `default_map`.

    Raises BadInput for a file that can't be read, and UsageError for a key that is no flag, with the nearest flag.
    Wrong values are left to Typer, which rejects them in the same words as on the command line.
    """
    from gpubalance.system.files import read_toml

    document = read_toml(path, "config", remedy=_REMEDY)
    known = {name: dict(flags(command.params)) for name, command in commands.items()}
    every = {flag: option for of in known.values() for flag, option in of.items()}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}  # `plan` may also be a flag
    for name in tables:
        if name not in known:
            raise UsageError(f"{path}: there is no command [{clean(name, 40)}]", remedy=_nearest(name, known))
    values = {key: value for key, value in document.items() if key not in tables}
    shared = _by_flag(f"{path}:", values, every, "no command has such an option")
    found = {}
    for name, of in known.items():
        own = _by_flag(f"{path}: [{name}]", tables.get(name, {}), of, f"gpubalance {name} has no such option")
        given = {flag: value for flag, value in (shared | own).items() if flag in of}
        found[name] = {str(of[flag].name): as_typed(of[flag], *value) for flag, value in given.items()}
    return found


def flags(params: Iterable[object]) -> Iterator[tuple[str, TyperOption]]:
    """Each flag of a command under its long name, without dashes."""
    for option in params:
        if isinstance(option, TyperOption) and not option.hidden and option.opts[0] not in _NEVER:
            yield long_name(option).removeprefix("--"), option


def long_name(option: TyperOption) -> str:
    """The option's name with two dashes: `--output` for `--output` and `-o`."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"


def _by_flag(
    place: str, table: Mapping[str, Any], flags: Mapping[str, object], unknown: str
) -> dict[str, tuple[Any, str]]:
    """The table's values and their places by flag. Raises UsageError for a key that is no flag, which is `unknown`."""
    found: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        where, flag = f"{place} {clean(key, 40)}", key.replace("_", "-")
        if flag not in flags:
            raise UsageError(f"{where}: {unknown}", remedy=_nearest(flag, flags))
        found[flag] = value, where
    return found


def as_typed(option: TyperOption, value: Any, place: str) -> Any:
    """The value in a command line's form: text, or a switch's true or false. Raises UsageError for anything else."""
    if option.is_flag and isinstance(value, bool):
        return value
    if option.is_flag:
        raise UsageError(f"{place} takes true or false, not {_shown(value)}")
    if isinstance(value, list) and not option.multiple:
        raise UsageError(f"{place} takes one value, not a list")
    texts = [_text(one, place) for one in (value if isinstance(value, list) else [value])]
    if not texts:
        raise UsageError(f"{place} needs a value")
    return texts if option.multiple else texts[0]


def _text(value: Any, place: str) -> str:
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{place} has a zero byte in it, which no flag takes")
    if not isinstance(value, str | int | float):
        raise UsageError(f"{place} takes text or a number, not {_shown(value)}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    return clean(repr(value) if isinstance(value, str) else str(value).lower(), 40)


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
        help="Take options from a TOML file, unless they are given here.",
        callback=take,
        is_eager=True,
    ),
]
# Typer's own shows a <bool> beside the option
HelpOption = Annotated[
    bool,
    typer.Option("--help", "-h", metavar="", help="Show this message and exit.", callback=_show_help, is_eager=True),
]


def common(
    verbose: Annotated[bool, typer.Option("--verbose", metavar="", help="Show the traceback of an error.")] = False,
    config: ConfigOption = None,
    help: HelpOption = False,
) -> None:
    """The options of every command, which main() reads."""
