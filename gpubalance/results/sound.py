"""Checks of fields that must agree within one record; the error begins with the field at fault."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import PydanticCustomError

UNSOUND = "unsound"


def unsound(field: str, what: str) -> PydanticCustomError:
    """The error for a validator to raise. `field` is the field's path within the validated record."""
    return PydanticCustomError(UNSOUND, "{field}: {what}", {"field": field, "what": what})


def check_devices(field: str, numbers: Sequence[int], count: int) -> None:
    """Each number must be one of `count` devices, and none may come twice."""
    for place, number in enumerate(numbers):
        if number >= count:
            raise unsound(f"{field}.{place}.device", f"there is no device {number}")
    if len(set(numbers)) < len(numbers):
        raise unsound(field, "a device is there twice")


def check_length(field: str, values: Sequence[object], count: int) -> None:
    """There must be one value for each device."""
    if len(values) != count:
        raise unsound(field, f"{len(values)} of {count} devices")


def check_split(batches: Sequence[int], micro_batches: Sequence[int], count: int) -> None:
    """One batch and one micro-batch for each device, neither 0 without the other, no micro-batch above its batch."""
    check_length("batches", batches, count)
    check_length("micro_batches", micro_batches, count)
    for number, (batch, micro) in enumerate(zip(batches, micro_batches, strict=True)):
        if not min(1, batch) <= micro <= batch:
            raise unsound(f"micro_batches.{number}", f"{micro} of a batch of {batch}")
