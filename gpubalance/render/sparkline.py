"""Numbers as ticks of different heights, on one line."""

from __future__ import annotations

from collections.abc import Sequence

_TICKS = "▁▂▃▄▅▆▇█"
# Values that differ by less than this are drawn flat, as noise has no shape.
_FLAT = 0.02


def sparkline(values: Sequence[float], *, least: float | None = None) -> str:
    """One tick for each value, from the smallest (or `least`) to the largest; flat if they are within 2 %."""
    if not values:
        return ""
    bottom, top = min(values) if least is None else least, max(values)
    if top - bottom <= _FLAT * abs(top):
        return _TICKS[len(_TICKS) // 2] * len(values)
    return "".join(_TICKS[round((value - bottom) / (top - bottom) * (len(_TICKS) - 1))] for value in values)
