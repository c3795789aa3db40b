"""Checks of fields that must agree within one record; the error begins with the field at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

UNSOUND = "unsound"


def unsound(field: str, what: str) -> PydanticCustomError:
    """The error for a validator to raise. `field` is the field's path within the validated record."""
    return PydanticCustomError(UNSOUND, "{field}: {what}", {"field": field, "what": what})


def check_devices(field: str, numbers: Sequence[int], count: int) -> None:
    """Raises `unsound` unless each number is one of `count` devices and none comes twice."""
    for place, number in enumerate(numbers):
        if number >= count:
            raise unsound(f"{field}.{place}.device", f"there is no device {number}")
    if len(set(numbers)) < len(numbers):
        raise unsound(field, "a device is there twice")


def check_length(field: str, found: int, count: int) -> None:
    """Raises `unsound` unless there is one value for each device."""
    if found != count:
        raise unsound(field, f"{found} of {count} devices")


def has_a_split(record: Any) -> Any:
    """A validator of records with `batches`: their sizes must form a valid `split`."""
    try:
        record.split  # noqa: B018  (made of its fields, and sound or not at all)
    except ValueError as error:
        raise unsound("micro_batches" if any(record.batches) else "batches", str(error)) from None
    return record
