"""The base of all records that are checked where they are made, and the types of their fields."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpubalance.numbers.units import parse_bytes
from gpubalance.text import clean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


# pydantic's types of fault, for a field that the record doesn't have and one that it lacks
_UNKNOWN = "extra_forbidden"
_MISSING = "missing"


# The bound has pydantic refuse what is not UTF-8
Name = Annotated[str, Field(max_length=4000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Multiple = Annotated[int, Field(ge=1, le=10**6)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
Batch = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
LARGEST_TIME_SCALE = 1e6
TimeScale = Annotated[float, Field(gt=0, le=LARGEST_TIME_SCALE, allow_inf_nan=False)]
WithinHour = Annotated[float, Field(gt=0, le=3600)]  # seconds
WithinDay = Annotated[float, Field(gt=0, le=86_400)]  # seconds


class Shown(NamedTuple):
    """What readers see of a field whose name does not say it: its label, and the unit shown.

    A name says them by itself as in `input_wait_s`: "input wait", in ms. `has_ratio` is false for a
    figure that is near 0 or a ratio already, so that its ratio to another one says nothing. `brief`
    is its head in a terminal's table of devices, which has only the fields with one.
    """

    label: str = ""
    unit: str | None = None
    has_ratio: bool = True
    brief: str = ""


class Record(BaseModel):
    """A frozen record that rejects unknown fields."""

    # Built at its first use: a command uses few of the records, and a worker fewer.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True
    )


class Fault(NamedTuple):
    """A wrong field: where it is, that as text, what is wrong, and the field that may be meant."""

    at: tuple[int | str, ...]
    place: str
    text: str
    meant: str | None = None


def first_fault(error: ValidationError) -> str:
    """The place of the first wrong field, `device.0.alpha_s`, and what is wrong with it.

    An unknown one comes first: it may be a missing one, misspelt.
    """
    faults = error.errors(include_url=False)
    unknown = [fault for fault in faults if fault["type"] == _UNKNOWN]
    first = unknown[0] if unknown else faults[0]
    place = place_of(first)
    text = fault_text(first)
    return f"{place}{text}" if place else text.lstrip(": .")


def all_faults(
    error: ValidationError, known: Callable[[tuple[int | str, ...]], Iterable[str]]
) -> Iterator[Fault]:
    """Each wrong field.

    `known` gives the fields at the place of an unknown one: the one that it may stand for is named,
    and is then not called missing. A list is not called empty because all its items are wrong.
    """
    faults = error.errors(include_url=False)
    around = {
        fault["loc"][:-depth]
        for fault in faults
        for depth in range(1, len(fault["loc"]))
    }
    meant = {}
    for fault in faults:
        if fault["type"] == _UNKNOWN:
            *within, name = fault["loc"]
            near = difflib.get_close_matches(str(name), known(tuple(within)), n=1)
            if near:
                meant[fault["loc"]] = near[0]
    misspelt = {(*place[:-1], name) for place, name in meant.items()}
    for fault in faults:
        is_reported = fault["type"] == _MISSING and fault["loc"] in misspelt
        if is_reported or fault["loc"] in around:
            continue
        text = fault_text(fault)
        likely = meant.get(fault["loc"])
        if likely is not None:
            text += f", did you mean {likely}?"
        yield Fault(fault["loc"], place_of(fault), text, likely)


def place_of(fault: ErrorDetails) -> str:
    """`device.0.alpha_s`; empty for the whole record."""
    return clean(".".join(map(str, fault["loc"])), 100)


def fault_text(fault: ErrorDetails) -> str:
    """What pydantic finds wrong, to follow the field's name: ` 0 should be greater than 0`."""
    if fault["type"] == _UNKNOWN:
        return ": unknown key"
    words = clean(fault["msg"].removeprefix("Value error, "))
    if words.startswith("Input "):
        value = clean(short_repr(fault["input"]), 40)
        return f" {words.replace('Input', value, 1)}"
    if fault["type"] == "unsound":
        return f".{words}"
    return f": {words}"


def option(
    panel: str,
    flags: str,
    about: str,
    default: Any = None,
    *,
    typed: str = "",
    **bounds: Any,
) -> Any:
    """A field that people set on the command line, where it stands in that `panel` of the help.

    `flags` ends with what is typed as its value: `--output -o FILE`; a switch has no such word.
    `typed` is how the default is typed, if unlike its value. The bounds are pydantic's.
    """
    names = flags.split()
    value = "" if names[-1].startswith("-") else names.pop()
    shown: Any = {
        "panel": panel,
        "flags": names,
        "value": value,
        "typed": typed or default,
    }
    return Field(default, description=about, json_schema_extra=shown, **bounds)


devices_option = partial(option, "Devices")
training_option = partial(option, "Training")
split_option = partial(option, "Split")
measuring_option = partial(option, "Measuring")
queue_option = partial(option, "Queue")
launching_option = partial(option, "Losses")
output_option = partial(option, "Output")
