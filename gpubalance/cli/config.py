"""`--config FILE`: options of every command from a TOML file, as if they were typed; the command line overrides it.

quiet = true                # for every command that has the flag
[run]                       # for `gpubalance run`; overrides what is given for every command
gpus = [0, 1]
global-batch = 1388         # a flag's long name without its dashes, or global_batch
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from gpubalance.errors import BadInput, GpubalanceError, PlanMismatch, UsageError
from gpubalance.text import clean

CONFIG = "--config"
_NEVER = (CONFIG, "--help")
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
        if isinstance(error, UsageError | BadInput | PlanMismatch):
            named = self._from_config(f"{error.message} {error.remedy}")
            if isinstance(error, UsageError):
                named = named or self._from_config()
            error.remedy = "\n".join(filter(None, [error.remedy, self._place(named)]))

    def _from_config(self, text: str | None = None) -> list[str]:
        """The flags that the config sets; with `text`, only those named in it."""
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
    from gpubalance.system.toml import read_toml

    document = read_toml(path, "config", remedy=_REMEDY)
    known = {name: dict(flags(command.params)) for name, command in commands.items()}
    every = {flag: option for of in known.values() for flag, option in of.items()}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}  # `plan` may also be a flag
    shared = {key: value for key, value in document.items() if key not in tables}
    _values(f"{path}:", shared, every, "no command has such an option")
    found = {}
    for name in tables:
        if name not in known:
            raise UsageError(f"{path}: there is no command [{clean(name, 40)}]", remedy=_nearest(name, known))
    for name, of in known.items():
        fitting = {key: value for key, value in shared.items() if key.replace("_", "-") in of}
        own = _values(f"{path}: [{name}]", tables.get(name, {}), of, f"gpubalance {name} has no such option")
        found[name] = _values(f"{path}:", fitting, of, "") | own
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


def _values(place: str, table: Mapping[str, Any], flags: Mapping[str, TyperOption], unknown: str) -> dict[str, Any]:
    """The table's values by parameter. Raises UsageError for a key that is no flag, which is `unknown`."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        where, flag = f"{place} {clean(key, 40)}", key.replace("_", "-")
        if f"--{flag}" == CONFIG:
            raise UsageError(f"{where}: a config can't name another", remedy="give it on the command line")
        if flag not in flags:
            raise UsageError(f"{where}: {unknown}", remedy=_nearest(flag, flags))
        if flags[flag].name in values:
            raise UsageError(f"{where} is there twice", remedy="once with -, once with _: leave one out")
        values[str(flags[flag].name)] = as_typed(flags[flag], value, where)
    return values


def as_typed(option: TyperOption, value: Any, place: str) -> Any:
    """The value in a command line's form: text, or a switch's true or false. Raises UsageError for anything else."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{place} takes true or false, not {_shown(value)}")
        return value
    if not option.multiple:
        if isinstance(value, list):
            raise UsageError(f"{place} takes one value, not a list")
        return _text(value, place)
    if value == []:
        raise UsageError(f"{place} needs a value")
    return [_text(item, place) for item in (value if isinstance(value, list) else [value])]


def _text(value: Any, place: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{place} has a zero byte in it, which no flag takes")
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{place} takes text or a number, not {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    return clean(repr(value) if isinstance(value, str) else str(value).lower(), 40)
