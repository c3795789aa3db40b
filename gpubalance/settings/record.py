"""The base of all records that are checked where they are made, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpubalance.numbers.units import parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Batch = Annotated[int, Field(ge=0, le=10**9, strict=True)]


class Shown(NamedTuple):
    """What readers see of a field where its name does not say it: its label, and the unit that it is shown in.

    A name says them by itself as in `input_wait_s`: "input wait", in ms. `has_ratio` is false for a figure that is near
    0 or a ratio already, so that its ratio to another one says nothing.
    """

    label: str = ""
    unit: str | None = None
    has_ratio: bool = True


class Record(BaseModel):
    """A frozen record that rejects unknown fields."""

    # Built at its first use: a command uses few of the records, and a worker fewer.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
