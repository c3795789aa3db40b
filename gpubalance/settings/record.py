"""The base of all records that are checked where they are made, and the types of their fields."""

from __future__ import annotations

from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpubalance.numbers.units import parse_bytes
from gpubalance.text import clean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_UNKNOWN = "extra_forbidden"  # pydantic's type of the fault of a field that the record has not
_LEAST_BYTES = 1 << 20  # of memory: fewer bytes mean a number without its unit


def _with_its_unit(size: object) -> int:
    """Bytes. Raises ValueError for an invalid size, and for text with a few bytes, which nobody
    means.
    """
    if isinstance(size, str) and size.strip().isdecimal() and 0 < int(size) < _LEAST_BYTES:
        number = size.strip()
        raise ValueError(
            f"{number} is {number} bytes: say the unit, {number}MiB, or {number}B if meant"
        )
    return parse_bytes(size)


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Room = Annotated[int, BeforeValidator(_with_its_unit)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Batch = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class Shown(NamedTuple):
    """What readers see of a field where its name does not say it: its label, and the unit that it
    is shown in.

    A name says them by itself as in `input_wait_s`: "input wait", in ms. `has_ratio` is false for a
    figure that is near 0 or a ratio already, so that its ratio to another one says nothing. `brief`
    is its head in a terminal's table of devices, which has only the fields with one.
    """

    label: str = ""
    unit: str | None = None
    has_ratio: bool = True
    brief: str = ""


def option(
    panel: str, flags: str, about: str, default: Any = None, *, typed: str = "", **bounds: Any
) -> Any:
    """A field that people set on the command line, where it stands in that `panel` of the help.

    `flags` ends with what is typed as its value: `--output -o FILE`; a switch has no such word.
    `typed` is how the default is typed, if unlike its value. The bounds are pydantic's.
    """
    *names, last = flags.split()
    names, value = ([*names, last], "") if last.startswith("-") else (names, last)
    told: Any = {"panel": panel, "flags": names, "value": value, "typed": typed or default}
    return Field(default, description=about, json_schema_extra=told, **bounds)


class Record(BaseModel):
    """A frozen record that rejects unknown fields."""

    # Built at its first use: a command uses few of the records, and a worker fewer.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def first_fault(error: ValidationError) -> str:
    """The place of the first wrong field, `device.0.alpha_s`, and what is wrong with it.

    An unknown one comes first: it may be a missing one, misspelt.
    """
    faults = error.errors(include_url=False)
    first = next((fault for fault in faults if fault["type"] == _UNKNOWN), faults[0])
    where, what = clean(".".join(map(str, first["loc"])), 100), fault_text(first)
    return f"{where}{what}" if where else what.lstrip(": .")


def fault_text(fault: ErrorDetails) -> str:
    """What pydantic finds wrong, to follow the field's name: ` 0 should be greater than 0`, `:
    Field required`.
    """
    if fault["type"] == _UNKNOWN:
        return ": unknown key"
    words = clean(fault["msg"].removeprefix("Value error, "))
    given = clean(short_repr(fault["input"]), 40)
    if words.startswith("Input "):
        return f" {words.replace('Input', given, 1)}"
    return f".{words}" if fault["type"] == "unsound" else f": {words}"
