"""Typer's parameters from the fields of records, and the records from what was typed.

A field becomes an option by `settings.record.option`.
"""

from __future__ import annotations

import os
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
from gpubalance.text import clean

Command = Callable[..., Any]

# Lists that may also be written with commas, as no value has one in it.
_WITH_COMMAS = ("--gpus", "--batches", "--micro-batches")


class Without:
    """Marks a record in a command's signature: fields that the command has no options for."""

    def __init__(self, *names: str) -> None:
        self.names = names


def with_options(command: Command, common: Command) -> Command:
    """The command as Typer needs it: each record in its signature is replaced by its options.

    The parameters of `common` are added; the command does not get their values.
    """
    records: dict[str, tuple[type[Record], list[str]]] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY:  # is for Python
            continue
        record = _record(parameter.annotation)
        if record is None:
            parameters.append(parameter)
        else:
            records[parameter.name] = record
            parameters += _options(*record)
    unseen = signature(common, eval_str=True).parameters

    @wraps(command)
    def called(**values: Any) -> Any:
        """The command, with the records that these values make."""
        arguments: dict[str, Any] = {}
        for name, (record, fields) in records.items():
            typed = {field: values.pop(field) for field in fields}
            arguments[name] = _made(command.__name__, record, typed)
        _refuse_one_file_for_two(arguments)
        for name, value in values.items():
            if name not in unseen:
                arguments[name] = value
        return command(**arguments)

    parameters += unseen.values()
    keywords = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters
    ]
    # What inspect, and so Typer, sees
    vars(called)["__signature__"] = Signature(keywords)
    return called


def _refuse_one_file_for_two(arguments: Mapping[str, Any]) -> None:
    """Raises UsageError if two options name one file to write: the later would replace the earlier.

    TensorBoard reads several kinds of files from one folder, so options may share a folder. Raises
    EnvironmentFault for a relative path if the current folder was deleted.
    """
    from gpubalance.system.state import absolute  # here, as help needs none

    written: dict[str, tuple[str, str]] = {}
    for record in arguments.values():
        for name, value in record:
            shown: Any = type(record).model_fields[name].json_schema_extra
            if value is None or not shown or shown["value"] not in ("FILE", "DIR"):
                continue
            flag = shown["flags"][-1]
            path = os.path.realpath(absolute(value))
            before, kind = written.setdefault(path, (flag, shown["value"]))
            if before != flag and "FILE" in (kind, shown["value"]):
                raise UsageError(
                    f"{before} and {flag} both write {clean(str(value))}",
                    remedy=f"give another {flag}",
                )


def _record(annotation: Any) -> tuple[type[Record], list[str]] | None:
    """A record and the names of its fields that are options; None for any other annotation."""
    record = annotation
    metadata: list[Any] = []
    if get_origin(annotation) is Annotated:
        record, *metadata = get_args(annotation)
    if not (isinstance(record, type) and issubclass(record, Record)):
        return None
    hidden: set[str] = set()
    for mark in metadata:
        hidden.update(mark.names)
    names = []
    # Its own first
    for name in dict.fromkeys([*record.__annotations__, *record.model_fields]):
        if record.model_fields[name].json_schema_extra and name not in hidden:
            names.append(name)
    return record, names


def _options(record: type[Record], names: Sequence[str]) -> Iterator[Parameter]:
    for name in names:
        field = record.model_fields[name]
        shown: Any = field.json_schema_extra
        kinds = [field.annotation, *get_args(field.annotation)]
        # A path is text too until it is known not to be empty: Path("") is the current folder
        kind: Any = bool if bool in kinds else str
        is_list = any(get_origin(kind) is tuple for kind in kinds)
        option = typer.Option(
            *shown["flags"],
            metavar=shown["value"],  # otherwise the help shows <bool> beside a switch
            help=field.description,
            rich_help_panel=shown["panel"],
            autocompletion=complete.offers(shown["flags"][0], field.annotation),
        )
        typed: Any = list[str] if is_list else kind
        default = None
        if shown["typed"] in (None, "", ()):
            typed = typed | None
        else:
            default = kind(shown["typed"])
        annotation: Any = Annotated[typed, option]
        yield Parameter(
            name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )


def flag_of(record: type[Record], name: str) -> str:
    """The long flag of a field: `--output`."""
    shown: Any = record.model_fields[name].json_schema_extra
    flag: str = shown["flags"][0].partition("/")[0]
    return flag


def _made(command: str, record: type[Record], typed: Mapping[str, Any]) -> Record:
    """The record of what was typed.

    Raises UsageError for the first value that its field does not take.
    """
    remedy = f"gpubalance {command} --help"
    values = {}
    for name, value in typed.items():
        flag = flag_of(record, name)
        if flag in _WITH_COMMAS and isinstance(value, list):
            value = re.findall(r"[^,\s]+", " ".join(value))
        if value in ("", [], [""]):
            raise UsageError(f"{flag} needs a value", remedy=remedy)
        if flag == "--noise-scale" and value is not None:
            value = noise_scale(value)
        if value is not None:
            values[name] = value
    try:
        return record.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        flag = flag_of(record, str(fault["loc"][0]))
        raise UsageError(f"{flag}{fault_text(fault)}", remedy=remedy) from None


def noise_scale(text: str) -> float:
    """Samples.

    Raises UsageError for a number with a comma, and BadInput for a file without a noise scale.
    """
    with suppress(ValueError):
        return float(text)
    if re.fullmatch(r"[\d.,_]*\d,[\d.,_]*", text.strip()):
        raise _ambiguous(text)
    from gpubalance.results.plan import Noise
    from gpubalance.results.records import read_record

    noise = read_record(Path(text), Noise)
    if noise.noise_scale is None:
        raise BadInput(
            f"{text} has no noise scale: {noise.unknown}",
            remedy="train for longer with split.monitor(noise=…), or with a smaller every=, or "
            "leave --noise-scale out",
        )
    return noise.noise_scale


def _ambiguous(text: str) -> UsageError:
    """The error for `3,2` or `3,200`: a comma is a decimal one here and a separator there."""
    whole = text.replace(",", "")
    remedy = f"write {whole}"
    if text.count(",") == 1 and "." not in text:
        remedy = f"write {text.replace(',', '.')} with a decimal point, or {whole}"
    return UsageError(
        f"--noise-scale {text} has a comma, which may be a decimal one or separate thousands",
        remedy=remedy,
    )
