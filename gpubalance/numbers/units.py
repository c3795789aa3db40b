"""Converts numbers with units to and from text; elsewhere a name carries its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

_BINARY = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

Units: TypeAlias = tuple[tuple[float, str], ...]  # the largest first
_BYTES: Units = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SECONDS: Units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_FLOPS: Units = (
    (1e15, "PFLOP/s"),
    (1e12, "TFLOP/s"),
    (1e9, "GFLOP/s"),
    (1e6, "MFLOP/s"),
    (1.0, "FLOP/s"),
)

NOT_AVAILABLE = "n/a"


def parse_bytes(text: object) -> int:
    """Reads bytes from `10.5 GiB`, `512 MiB` or a plain number.

    Only binary units, as GB is ambiguous. The ValueError for anything else says what is right.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError("a size is a number of bytes or text such as '10.5 GiB'")
    if isinstance(text, (int, float)):
        number = text
        unit = ""
    else:
        match = _SIZE.fullmatch(text)
        if not match or match[2].upper() not in _BINARY:
            raise ValueError(
                f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB"
            )
        number = float(match[1])
        unit = match[2].upper()
    size = number * _BINARY[unit]
    if not 0 <= size < 2**63:
        raise ValueError(
            f"{text!r} is not a size: it must be 0 or more, and less than 8 EiB"
        )
    return round(size)


def three_digits(value: float) -> str:
    """`1.40`, `14.0`, `140`, `1400`: such numbers line up and show how exact they are."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}"


def _scaled(value: float, units: Units) -> str:
    """In the largest of the units of which it is one or more when rounded, else in the last."""
    # Without the division's own error, by which 0.0009995 s would be less than 0.9995 ms
    parts = [(round(value / scale, 12), name) for scale, name in units]
    large_enough = (part for part in parts if abs(part[0]) >= 0.9995)
    number, name = next(large_enough, parts[-1])
    return f"{three_digits(number)} {name}"


def all_digits(value: float) -> str:
    """A number as an option takes it, not rounded: `8`, `1.2345678`."""
    return repr(value).removesuffix(".0")


def format_bytes(size: int | None) -> str:
    """`9.72 GiB`; `n/a` for an unknown size."""
    if size is None:
        return NOT_AVAILABLE
    if size >= _BYTES[-1][0]:
        return _scaled(size, _BYTES)
    return f"{size} B"


def format_seconds(seconds: float | None) -> str:
    """`652 ms`, `1.31 s`, `48 µs`; `n/a` for an unknown time."""
    if seconds is None:
        return NOT_AVAILABLE
    if abs(seconds) < 1e-9:  # the difference of two times is only rounding
        return "0 s"
    if abs(seconds) >= 0.9995e-6:
        return _scaled(seconds, _SECONDS)
    return f"{seconds * 1e6:.2g} µs"


_NEARLY = 1.1  # a range no wider than so many times is one rough duration


def format_duration(seconds: float) -> str:
    """A rough duration to come: `1 s`, `100 s`, `2 min`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min"


@dataclass(frozen=True)
class DurationRange:
    """About how long something takes: at least `least_s` seconds, and at most `most_s`.

    In a text it is `14 to 30 s` or `80 s to 2 min`, and one duration if the two are nearly alike.
    """

    least_s: float
    most_s: float

    @classmethod
    def about(cls, seconds: float) -> DurationRange:
        """One number of seconds: both ends are the same."""
        return cls(seconds, seconds)

    def __add__(self, other: DurationRange) -> DurationRange:
        return DurationRange(self.least_s + other.least_s, self.most_s + other.most_s)

    def __mul__(self, factor: float) -> DurationRange:
        return DurationRange(factor * self.least_s, factor * self.most_s)

    def after(self, seconds: float) -> DurationRange:
        """What is left of it after so many seconds; 0 s if it is over."""
        return DurationRange(
            max(0.0, self.least_s - seconds), max(0.0, self.most_s - seconds)
        )

    def __str__(self) -> str:
        least = format_duration(self.least_s)
        most = format_duration(self.most_s)
        if least == most or self.most_s < _NEARLY * self.least_s:
            return least
        number, unit = least.split()
        return f"{number if most.endswith(f' {unit}') else least} to {most}"


NO_TIME = DurationRange(0.0, 0.0)


def format_rate(rate: float | None) -> str:
    """Samples per second: `2127`, `91.3`; `n/a` for an unknown rate."""
    if rate is None:
        return NOT_AVAILABLE
    return three_digits(rate)


def format_flops(rate: float | None) -> str:
    """Operations per second: `11.3 TFLOP/s`; `n/a` for an unknown rate."""
    if rate is None:
        return NOT_AVAILABLE
    return _scaled(rate, _FLOPS)


def format_percent(part: float | None, digits: int = 0) -> str:
    """`94 %` for 0.94; `n/a` for an unknown fraction."""
    if part is None:
        return NOT_AVAILABLE
    percent = round(100 * part, digits) or 0.0  # never -0
    return f"{percent:.{digits}f} %"
