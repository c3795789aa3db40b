"""What comes of taking batches from a user's data with no model behind it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpubalance.settings.record import Record, Seconds

# How a dataset can be made again, to see whether that is faster.
Change = Literal["parallel map", "batch first", "cache", "threads", "workers"]


class Pulled(Record):
    """So many batches came in so many seconds, for which the processors worked `cpu_s`, over all cores."""

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
