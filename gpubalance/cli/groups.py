"""Groups of options: a frozen dataclass whose fields are options, declared once for every command that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from typing import Any, cast, get_args, get_type_hints

Command = Callable[..., Any]


@dataclass(frozen=True)
class Nothing:
    """A group without options."""


def grouped(command: Command, *, unseen: type = Nothing) -> Command:
    """The same command with the signature that Typer needs: a group's options in the place of the group.

    The options of the group `unseen` are added to it; the command itself does not get them.
    """
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}

    @wraps(command)
    def called(**values: Any) -> Any:
        made = {name: group(**{f.name: values.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        for field in fields(unseen):
            del values[field.name]
        return command(**made, **values)

    options = [option for parameter in parameters for option in _options(parameter)]
    vars(called)["__signature__"] = Signature([*options, *_fields(unseen)])  # what inspect, and so Typer, takes it for
    return called


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """The options of a group; else the parameter itself."""
    if is_dataclass(parameter.annotation):
        yield from _fields(cast("type", parameter.annotation))
    else:
        yield _option(parameter.name, parameter.default, parameter.annotation)


@cache
def _fields(group: type) -> tuple[Parameter, ...]:
    hints = get_type_hints(group, include_extras=True)
    return tuple(_option(field.name, field.default, hints[field.name]) for field in fields(group))


def _option(name: str, default: object, annotation: Any) -> Parameter:
    kind, option = get_args(annotation)
    if kind is bool:
        option.metavar = ""  # or the help has <bool> beside every switch
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
