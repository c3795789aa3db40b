"""Numbers with units, both ways."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
    parse_bytes,
)
from tests.support.cases import cases


@cases(
    "text, size",
    ("10.5 GiB", 11274289152),
    ("9.1MiB", 9542042),
    ("512", 512),
    (512, 512),
    ("1 kib", 1024),
    ("0", 0),
    ("3 B", 3),
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


NO_TEXTS = ("1 GB", "-1", "", "GiB", "1e3", "inf", "nan", "9" * 30, "9999999999 TiB")
NO_NUMBERS: tuple[object, ...] = (
    float("nan"),
    float("inf"),
    -1,
    True,
    [],
    {},
    None,
    date.max,
    10**400,
)


@cases("text", *NO_TEXTS, *NO_NUMBERS)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@given(st.integers(0, 2**53))
def test_bytes_are_written_to_three_digits(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.006, abs=0.5)


def test_seconds_rates_and_parts_are_written() -> None:
    assert [format_seconds(x) for x in (0.652, 1.312, 4.8e-5, 0.0)] == [
        "652 ms",
        "1.31 s",
        "48.0 µs",
        "0 s",
    ]
    assert [format_seconds(x) for x in (0.0999, 0.99996, None)] == [
        "99.9 ms",
        "1.00 s",
        "n/a",
    ]
    assert [format_rate(x) for x in (2127.4, 91.34, 0.5, None)] == [
        "2127",
        "91.3",
        "0.500",
        "n/a",
    ]
    assert [format_percent(x) for x in (0.944, None)] == ["94 %", "n/a"]
