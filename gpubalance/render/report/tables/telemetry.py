"""Columns of how a GPU was while it was watched."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.render.report.table import Cell, Column
from gpubalance.results.telemetry import Telemetry

TELEMETRY = (
    Column("readings", "readings"),
    Column("duration_s", "over", "s"),
    Column("temperature_c", "hottest", "°C"),
    Column("power_w", "mean power", "W"),
    Column("energy_j", "energy", "J"),
    Column("sm_clock_mhz", "SM clock", "MHz"),
    Column("memory_clock_mhz", "memory clock", "MHz"),
    Column("throttle_reasons", "throttled by", "text"),
    Column("ecc_uncorrected", "uncorrected ECC errors"),
)


def telemetry_cells(t: Telemetry) -> tuple[Cell, ...]:
    """Its row, in the order of the columns."""
    return (
        *(t.readings, t.duration_s, t.temperature_c, t.power_w, t.energy_j, t.sm_clock_mhz, t.memory_clock_mhz),
        *(reasons_text(t.throttle_reasons), t.ecc_uncorrected),
    )


def reasons_text(reasons: Sequence[str] | None) -> str | None:
    """`nothing` where it told that it was not throttled; None where it did not tell."""
    return None if reasons is None else ", ".join(reasons) or "nothing"
