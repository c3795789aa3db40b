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
    """The command with the signature that Typer needs: each group replaced by its options.

    The options of the group `unseen` are added to the signature; the command itself does not get them.
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
    vars(called)["__signature__"] = Signature([*options, *_fields(unseen)])  # what inspect, and so Typer, sees
    return called


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """The options of a group, or the parameter itself if it is none."""
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
        option.metavar = ""  # otherwise the help shows <bool> beside every switch
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
