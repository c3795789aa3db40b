"""Typer's parameters from the fields of records, and the records from what was typed: see
`settings.record.option`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import ValidationError

from gpubalance.cli import complete
from gpubalance.errors import BadInput, UsageError
from gpubalance.settings.record import Record, fault_text

Command = Callable[..., Any]

# Lists that may also be written with commas, as no value has one in it.
_WITH_COMMAS = ("--gpus", "--batches", "--micro-batches")


class Without:
    """Marks a record in a command's signature: fields that the command has no options for."""

    def __init__(self, *names: str) -> None:
        self.names = names


def with_options(command: Command, common: Command) -> Command:
    """The command with the signature that Typer needs: each record replaced by the options that its
    fields are.

    The parameters of `common` are added; the command does not get their values.
    """
    every = signature(command, eval_str=True).parameters.values()
    # The others are for Python.
    parameters = [p for p in every if p.kind is not Parameter.KEYWORD_ONLY]
    records = {p.name: found for p in parameters if (found := _record(p.annotation))}
    unseen = signature(common, eval_str=True).parameters

    @wraps(command)
    def called(**values: Any) -> Any:
        typed = {
            name: {field: values.pop(field) for field in fields}
            for name, (_, fields) in records.items()
        }
        made = {
            name: _made(command.__name__, records[name][0], given) for name, given in typed.items()
        }
        return command(
            **made, **{name: value for name, value in values.items() if name not in unseen}
        )

    options = [
        one
        for p in parameters
        for one in (_options(*records[p.name]) if p.name in records else [p])
    ]
    keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*options, *unseen.values())]
    vars(called)["__signature__"] = Signature(keywords)  # what inspect, and so Typer, sees
    return called


def _record(annotation: Any) -> tuple[type[Record], list[str]] | None:
    """A record and the names of its fields that are options; None for any other annotation."""
    record, *marks = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if not (isinstance(record, type) and issubclass(record, Record)):
        return None
    hidden = {name for mark in marks if isinstance(mark, Without) for name in mark.names}
    own_first = dict.fromkeys((*record.__annotations__, *record.model_fields))
    return record, [
        n for n in own_first if record.model_fields[n].json_schema_extra and n not in hidden
    ]


def _options(record: type[Record], names: Sequence[str]) -> Iterator[Parameter]:
    for name in names:
        field = record.model_fields[name]
        told: Any = field.json_schema_extra
        kinds = get_args(field.annotation) or (field.annotation,)
        kind: Any = next((kind for kind in (bool, Path) if kind in kinds), str)
        is_list = any(tuple in (one, get_origin(one)) for one in (field.annotation, *kinds))
        default = None if told["typed"] in (None, "", ()) else kind(told["typed"])
        option = typer.Option(
            *told["flags"],
            metavar=told["value"],  # otherwise the help shows <bool> beside a switch
            help=field.description,
            rich_help_panel=told["panel"],
            autocompletion=complete.offers(told["flags"][0], field.annotation),
        )
        typed: Any = list[str] if is_list else kind
        annotation: Any = Annotated[typed if default is not None else typed | None, option]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def flag_of(record: type[Record], name: str) -> str:
    """The long flag of a field: `--output`."""
    told: Any = record.model_fields[name].json_schema_extra
    flag: str = told["flags"][0].partition("/")[0]
    return flag


def _made(command: str, record: type[Record], typed: Mapping[str, Any]) -> Record:
    """The record of what was typed. Raises UsageError for the first value that its field does not
    take.
    """
    remedy = f"gpubalance {command} --help"
    given = {}
    for name, value in typed.items():
        flag = flag_of(record, name)
        if flag in _WITH_COMMAS and isinstance(value, list):
            value = re.findall(r"[^,\s]+", " ".join(value))
        if value == []:
            raise UsageError(f"{flag} needs a value", remedy=remedy)
        if value is not None:
            given[name] = noise_scale(value) if flag == "--noise-scale" else value
    try:
        return record.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(
            f"{flag_of(record, str(fault['loc'][0]))}{fault_text(fault)}", remedy=remedy
        ) from None


def noise_scale(text: str) -> float:
    """Samples. Raises BadInput for a file without a noise scale."""
    with suppress(ValueError):
        return float(text.replace(",", "").replace("_", ""))
    from gpubalance.results.plan import Noise
    from gpubalance.results.records import read_record

    found = read_record(Path(text), Noise)
    if found.noise_scale is None:
        raise BadInput(
            f"{text} has no noise scale: {found.unknown}",
            remedy=(
                "train for longer with split.monitor(noise=…), or with a smaller every=, or leave "
                "--noise-scale out"
            ),
        )
    return found.noise_scale
