"""What results of every kind have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from gpubalance.config import Device, Record

SCHEMA_VERSION: Literal[1] = 1

# Nanoseconds are far below what any of it is good for, and 17 digits a number make a file that nobody can read.
Number = Annotated[float, PlainSerializer(lambda x: float(f"{x:.7g}"), return_type=float)]
Positive = Annotated[Number, Field(gt=0)]
Interval = tuple[Number, Number] | None
# Of samples, steps, parameters, bytes; and the place of a device among the result's. A file may say anything.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Samples = Annotated[int, Field(ge=0, le=10**9)]


def check_places(devices: Sequence[Device], places: Sequence[int], what: str) -> None:
    """Raises ValueError for a place that is no device's of the result, or where two are the same."""
    if any(place >= len(devices) for place in places):
        raise ValueError(f"{what}: there are {len(devices)} devices, and none of number {max(places)}")
    if len(set(places)) < len(places):
        raise ValueError(f"{what}: a device is there twice")


def check_split(devices: int, batches: Sequence[int], micro_batches: Sequence[int]) -> None:
    """Raises ValueError for batches or micro-batches that are not one a device, each a divisor of its batch."""
    if not len(batches) == len(micro_batches) == devices:
        raise ValueError(f"{len(batches)} batches and {len(micro_batches)} micro-batches for {devices} devices")
    pairs = zip(batches, micro_batches, strict=True)
    if not any(batches) or any(micro != batch and (not micro or batch % micro) for batch, micro in pairs):
        raise ValueError("batches: one must be above 0; micro_batches: each must divide its batch")


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
