"""Numbers with units, both ways."""

from __future__ import annotations

import math
from datetime import date

import pytest

from gpubalance.numbers.units import parse_bytes
from tests.support.cases import cases


@cases(
    "text, size",
    ("10.5 GiB", 11274289152),
    ("9.1MiB", 9542042),
    (512, 512),
    ("1 kib", 1024),
    ("3 B", 3),
    ("0.5 B", 0),
    ("1.5 B", 2),
    (0, 0),
    ("1 TiB", 2**40),
    (2**63 - 1024, 2**63 - 1024),
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


NO_TEXTS = ("1 GB", "-1", "", "GiB", "1e3", "inf", "nan", "9" * 30, "9999999999 TiB")
NO_NUMBERS: tuple[object, ...] = (math.nan, math.inf, -1, True, [], {}, None, date.max)
TOO_LARGE = (2**63, "8388608 TiB", 10**400)


@cases("text", *NO_TEXTS, *NO_NUMBERS, *TOO_LARGE)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)
