"""Measurements of a user's data without a model: batches are taken from it as fast as they come."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.settings.record import Record, Seconds

# Ways to change a dataset, to see whether that is faster.
Change = Literal["parallel map", "batch first", "cache", "threads", "workers"]


class Pulled(Record):
    """`batches` came in `seconds`; meanwhile the processors worked `cpu_s`, added up over all cores."""

    kind: Literal["pulled"] = "pulled"
    batches: Annotated[int, Field(ge=1)]
    seconds: Annotated[float, Field(gt=0)]
    cpu_s: Seconds


class Mend(Record):
    """A change that may make the dataset faster, at a place in the user's code. `samples` must come once before."""

    change: Change
    where: str
    what: str
    samples: Annotated[int, Field(ge=0)] = 0
