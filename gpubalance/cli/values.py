"""Converts the values of options: lists, numbers, seconds, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import typer

from gpubalance.cli.command import LIST_OPTIONS
from gpubalance.errors import UsageError
from gpubalance.numbers.units import parse_bytes
from gpubalance.text import clean

Number = TypeVar("Number", int, float)
_LARGEST, _DIGITS = 10**9, 20
_MOST_MICRO_BATCHES = 1024
_LEAST_BYTES = 1 << 20  # of memory: fewer bytes mean a number without its unit


def words(texts: Sequence[str] | None) -> list[str] | None:
    """The items of a list option, given once or several times; None if it was not given."""
    if not texts:
        return None
    return [word for text in texts for word in re.split(r"[,\s]+", text) if word]


def whole_numbers(option: str, texts: Sequence[str] | None) -> list[int] | None:
    """The items of a list option as whole numbers. Raises UsageError for the first that is none."""
    items = words(texts)
    if items is None:
        return None
    for item in items:
        # The length first, as Python refuses to convert thousands of digits.
        if not item.isascii() or not item.isdigit() or len(item) > _DIGITS or int(item) > _LARGEST:
            raise UsageError(
                f"{option} takes whole numbers up to {_LARGEST}, not {clean(item, 40)!r}",
                remedy=f"for example {option} {LIST_OPTIONS[option]}",
            )
    return [int(item) for item in items]


def between(least: int, most: int) -> Callable[[Number | None], Number | None]:
    """A callback that checks an option's bounds. Typer's own would show in the help, which has no room for billions."""

    def check(value: Number | None) -> Number | None:
        if value is not None and not least <= value <= most:
            raise typer.BadParameter(f"from {least} to {most}, not {value}")
        return value

    return check


def seconds(option: str, value: float, most: float) -> float:
    """Returns the value. Raises UsageError unless it is above 0 and at most `most`; NaN is not."""
    if not 0 < value <= most:
        raise UsageError(
            f"{option} takes seconds, more than 0 and up to {most:,.0f}, not {value:g}",
            remedy=f"for example {option} {min(60, most):g}",
        )
    return value


def seconds_or_none(option: str, value: float | None, most: float) -> float | None:
    """The value of an option that may be left out, checked like `seconds`."""
    return None if value is None else seconds(option, value, most)


def size(option: str, text: str) -> int:
    """Bytes. Raises UsageError for an invalid size, and for a few bytes without a unit, which nobody means."""
    try:
        found = parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if text.strip().isdigit() and 0 < found < _LEAST_BYTES:
        number = text.strip()
        raise UsageError(
            f"{option} {number} is {number} bytes", remedy=f"say the unit: {option} {number}MiB, or {number}B if meant"
        )
    return found


def micro_batches(text: str) -> int | Literal["auto"]:
    """The most micro-batches that `--accumulate` allows. Raises UsageError for another word."""
    if text in ("auto", "off"):
        return "auto" if text == "auto" else 1
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS and 1 <= int(text) <= _MOST_MICRO_BATCHES:
        return int(text)
    raise UsageError(
        f"--accumulate takes auto, off or a number from 1 to {_MOST_MICRO_BATCHES}, not {clean(text, 40)!r}"
    )
