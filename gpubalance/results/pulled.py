"""Measurements of a user's data without a model: batches are taken from it as fast as they come."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.settings.record import Record, Seconds


class Pulled(Record):
    """`batches` came in `seconds`; meanwhile the processors worked `cpu_s`, added up over all cores."""

    kind: Literal["pulled"] = "pulled"
    batches: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]
    cpu_s: Seconds


class Remedy(Record):
    """What usually makes such an input pipeline faster, at the line `where` of the user's code."""

    where: str
    what: str
