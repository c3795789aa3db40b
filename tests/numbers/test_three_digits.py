"""Numbers are shown with three digits, held against decimal arithmetic."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from gpubalance.numbers.units import (
    DurationRange,
    format_bytes,
    format_duration,
    format_flops,
    format_percent,
    format_rate,
    format_seconds,
    three_digits,
)
from tests.support.cases import cases


def shown(value: float) -> str:
    """The value rounded in decimal to three digits, or to a whole number if that has more."""
    exact = Decimal(value)
    rounded = Context(prec=3, rounding=ROUND_HALF_EVEN).plus(exact)
    if abs(rounded) >= 100:
        return str(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))
    places = 2 - rounded.adjusted()
    return f"{rounded:.{places}f}"


@given(st.floats(0.001, 1e9), st.sampled_from([1, -1]))
@example(99.94, 1)
@example(99.96, 1)
@example(99.97, 1)
@example(9.995, 1)
@example(9.996, -1)
@example(0.9996, 1)
@example(100.4, 1)
def test_three_digits_or_all_of_a_whole_number(value: float, sign: int) -> None:
    assert three_digits(sign * value) == shown(sign * value)


@cases(
    "seconds, text",
    (0.99949, "999 ms"),
    (0.9996, "1.00 s"),
    (9.996e-4, "1.00 ms"),
    (9.995e-4, "1.00 ms"),
    (-9.995e-4, "-1.00 ms"),
    (9.995e-7, "1.00 µs"),
    (99.97, "100 s"),
    (1e-6, "1.00 µs"),
    (4.87e-7, "0.49 µs"),
    (1.1e-9, "0.0011 µs"),
    (9e-10, "0 s"),
    (-9e-10, "0 s"),
    (-0.25, "-250 ms"),
    (-2e-9, "-0.002 µs"),
    (None, "n/a"),
)
def test_a_time_is_in_the_largest_unit_it_has(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@cases(
    "size, text",
    (0, "0 B"),
    (1024, "1.00 KiB"),
    (2**20 - 1, "1.00 MiB"),
    (1023 * 2**10, "1023 KiB"),
    (10 * 2**30, "10.0 GiB"),
    (2**40, "1.00 TiB"),
    (3000 * 2**40, "3000 TiB"),
    (None, "n/a"),
)
def test_bytes_are_in_the_largest_unit_they_fill(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


@cases(
    "rate, text",
    (1e3, "1000 FLOP/s"),
    (9.997e8, "1.00 GFLOP/s"),
    (11.34e12, "11.3 TFLOP/s"),
    (3e15, "3.00 PFLOP/s"),
    (None, "n/a"),
)
def test_operations_are_in_their_largest_unit(rate: float | None, text: str) -> None:
    assert format_flops(rate) == text


def test_rates_parts_and_durations_are_rounded_as_said() -> None:
    rates = [format_rate(rate) for rate in (99.97, 2127.4, 0.5, None)]
    assert rates == ["100", "2127", "0.500", "n/a"]
    assert format_percent(None) == "n/a"
    parts = [format_percent(0.12345, 1), format_percent(0.005), format_percent(-0.03)]
    assert parts == ["12.3 %", "0 %", "-3 %"]
    nothing = [format_percent(-1e-4, 1), format_percent(-0.0), format_percent(-0.005)]
    assert nothing == ["0.0 %", "0 %", "0 %"]
    durations = [format_duration(seconds) for seconds in (0.2, 1.6, 99.4, 100, 3600)]
    assert durations == ["1 s", "2 s", "99 s", "2 min", "60 min"]
    pairs = (14, 30), (0.2, 1.2), (80, 130), (130, 200)
    ranges = [str(DurationRange(*pair)) for pair in pairs]
    assert ranges == ["14 to 30 s", "1 s", "80 s to 2 min", "2 to 3 min"]
    assert math.isclose(float(three_digits(0.0012345)), 0.00123)
