"""What results of every kind have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from gpubalance.settings.record import Record

SCHEMA_VERSION: Literal[1] = 1

# Nanoseconds are far below what any of it is good for, and 17 digits a number make a file that nobody can read.
Number = Annotated[float, PlainSerializer(lambda x: float(f"{x:.7g}"), return_type=float)]
Positive = Annotated[Number, Field(gt=0)]
Interval = tuple[Number, Number] | None
# Of samples, steps, parameters, bytes; and the place of a device among the result's. A file may say anything.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Samples = Annotated[int, Field(ge=0, le=10**9)]


class Warning_(Record):
    """Something a reader must know of the result: a code to search for, what it is, and what to do about it."""

    code: str
    message: str
    next: str


class StepTime(Record):
    """Seconds a step. A sample is the mean of `steps_per_sample` consecutive steps that were timed as one.

    `at_s` is when each of them ended, in seconds from the first moment that was measured, of whatever split; null in
    results of before it was kept.
    """

    median: Positive
    mad: Number
    ci95: Interval
    steps_per_sample: Count
    samples: tuple[Number, ...]
    at_s: tuple[Number, ...] | None = None


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
    cpu_count: int
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
