"""What results of every kind have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, model_validator

from gpubalance.results.sound import unsound
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

SCHEMA_VERSION: Literal[1] = 1

# Nothing that is measured is larger, in its unit (FLOP/s are the most). A file may say anything.
_LARGEST = 10**18
Exact = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
# Seven digits are more than any measurement is good for, and keep a file readable.
Number = Annotated[Exact, PlainSerializer(lambda x: float(f"{x:.7g}"), return_type=float)]
# A time in seconds or a rate a second.
Positive = Annotated[Number, Field(gt=1e-12, lt=1e12)]
Interval = tuple[Number, Number] | None
Whole = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
# Steps, parameters, bytes; and a device's place among the result's devices.
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Samples = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[Samples, Field(ge=1)]
Devices = Annotated[tuple[Device, ...], Field(min_length=1)]


class Warning_(Record):
    """Something that a reader must know: a code to search for, what it is, and what to do about it."""

    code: str
    message: str
    next: str


class StepTime(Record):
    """Seconds a step. Each of `samples` is the mean of `steps_per_sample` consecutive steps that were timed as one.

    `at_s` is when each of them ended, in seconds from the first measured moment of any split; null in older results.
    """

    median: Positive
    mad: Number
    ci95: Interval
    steps_per_sample: Count
    samples: tuple[Positive, ...]
    at_s: tuple[Number, ...] | None = None

    @model_validator(mode="after")
    def _sound(self) -> StepTime:
        if self.at_s is not None and len(self.at_s) != len(self.samples):
            raise unsound("at_s", f"{len(self.at_s)} of {len(self.samples)} samples")
        return self


class Throughput(Record):
    """Samples per second: the global batch over the step time."""

    median: Positive
    ci95: Interval


class Environment(Record):
    """The software and machine behind a figure: an allow-list, nothing personal."""

    gpubalance: str
    python: str
    platform: str
    cpu: str
    cpu_count: Count
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    driver: str | None


class Model(Record):
    """What was trained; `gradient_bytes` is what every all-reduce moves."""

    name: str
    parameters: Count
    gradient_bytes: Count
