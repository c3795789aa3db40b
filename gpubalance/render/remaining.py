"""The time that is left of a measurement, as text."""

from __future__ import annotations

from gpubalance.numbers.units import format_duration

_LONGER = 1.1  # than expected at first: less is not mentioned


def left_text(number: int, of: int, left_s: float, whole_s: float, thought_s: float) -> str:
    """`phase 2 of 4, about 3 min of 6 left`; without a time once it has passed.

    If the whole takes longer than `thought_s`, as windows or rounds were added, it says so.
    """
    where = [f"phase {number} of {of}"] if of > 1 else []
    left = f"about {_of_whole(left_s, whole_s)} left{_longer(whole_s, thought_s)}"
    return ", ".join([*where, *([left] if left_s > 0 else [])])


def phase_text(name: str, number: int, of: int, seconds: float, left_s: float, whole_s: float, thought_s: float) -> str:
    """`phase 2 of 4, GPU:1 alone: about 19 s; about 57 s of 77 left`, for the beginning of a phase."""
    if of == 1:
        return f"{name}: about {format_duration(whole_s)}"
    rest = f"{format_duration(whole_s)} in all" if number == 1 else f"{_of_whole(left_s, whole_s)} left"
    rest += _longer(whole_s, thought_s)
    return f"phase {number} of {of}, {name}: about {format_duration(seconds)}; about {rest}"


def _longer(whole_s: float, thought_s: float) -> str:
    return f", more than the {format_duration(thought_s)} at first" if whole_s > _LONGER * thought_s else ""


def _of_whole(left_s: float, whole_s: float) -> str:
    left, whole = format_duration(left_s), format_duration(whole_s)
    number, unit = whole.split()
    return f"{left} of {number if left.endswith(f' {unit}') else whole}"
