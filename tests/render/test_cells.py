"""A table's cell by its unit: exact, rounded, and as the terminal shows it."""

from __future__ import annotations

from gpubalance.render.columns import Cell, Column, columns_of, named
from gpubalance.render.table import exact, rounded, short
from gpubalance.results.plan import Accumulation, LeftOut
from gpubalance.results.run import Measurement, Replica
from gpubalance.settings.record import Shown
from tests.support.cases import cases


@cases(
    "unit, cell, as_exact, as_rounded, as_short",
    ("ms", 0.0547512345, "54.75123", "54.75", "54.8 ms"),
    ("ms", 12.3456, "12345.6", "12346", "12.3 s"),
    ("µs", 0.0000123456, "12.3456", "12.35", "12.3 µs"),
    ("GiB", 3 * 2**29, "1.5", "1.5", "1.50 GiB"),
    ("GiB", 0, "0", "0", "0 B"),
    ("%", 0.98765, "98.765", "98.77", "98.8 %"),
    ("×", 1.23456, "1.23456", "1.235", "1.235"),
    ("samples/s", 5882.35, "5882.35", "5882", "5882"),
    ("samples/s", 99.97, "99.97", "99.97", "100"),
    ("W", 999.96, "999.96", "1000", "1000"),
    ("", 123456, "123456", "123456", "123456"),
    ("", 12345678.9, "12345679", "12345679", "1.235e+07"),
    ("", 9999999.0, "9999999", "9999999", "1e+07"),
    ("", -1e7, "-10000000", "-10000000", "-1e+07"),
    ("", -1234.5, "-1234.5", "-1234", "-1234"),
    ("", -0.0, "0", "0", "0"),
    ("ms", None, "n/a", "n/a", "n/a"),
    ("", True, "yes", "yes", "yes"),
    ("", False, "no", "no", "no"),
    ("s", "a card", "a card", "a card", "a card"),
)
def test_a_cell_by_its_unit(
    unit: str, cell: Cell, as_exact: str, as_rounded: str, as_short: str
) -> None:
    column = Column("key", "label", unit)
    assert exact(cell, column) == as_exact
    assert rounded(cell, column) == as_rounded
    assert short(cell, column) == as_short


@cases(
    "key, shown, label, unit, has_ratio",
    ("input_wait_s", Shown(), "input wait", "ms", True),
    ("memory_peak_bytes", Shown(), "memory peak", "GiB", True),
    ("sm_clock_mhz", Shown(), "sm clock", "MHz", True),
    ("temperature_c", Shown(), "temperature", "°C", True),
    ("micro_batch", Shown(), "micro-batch", "", True),
    ("predicted_throughput", Shown(), "predicted throughput", "samples/s", True),
    ("throughput_s", Shown(), "throughput", "ms", True),
    ("gain", Shown(unit="%"), "gain", "%", False),
    ("speedup", Shown("faster", "×"), "faster", "×", False),
    ("wait_s", Shown(unit="s"), "wait", "s", True),
    ("steps", Shown("measured steps", has_ratio=False), "measured steps", "", False),
)
def test_a_column_is_called_as_its_field_says(
    key: str, shown: Shown, label: str, unit: str, has_ratio: bool
) -> None:
    column = named(key, shown)
    assert (column.key, column.label, column.unit) == (key, label, unit)
    assert column.has_ratio is has_ratio
    assert not column.is_text


def test_a_plan_s_gains_are_shown_in_percent() -> None:
    for kind in (Accumulation, LeftOut):
        (column,) = columns_of(kind, "gain")
        assert short(0.064, column) == "6.4 %"


def test_a_gain_is_not_said_to_be_of_throughput_only() -> None:
    (column,) = columns_of(LeftOut, "gain")
    assert column.label == "throughput or goodput would change by"


def test_a_records_columns_read_its_fields() -> None:
    replica = Replica(
        device=1,
        batch=48,
        micro_batch=24,
        throughput=480.0,
        compute_s=0.08,
        update_s=0.004,
        wait_s=0.01,
        utilisation=0.8,
        memory_peak_bytes=None,
    )
    columns = columns_of(Replica)
    keys = [column.key for column in columns]
    assert keys[:4] == ["batch", "micro_batch", "throughput", "compute_s"]
    cells = {column.key: column.value(replica) for column in columns}
    assert cells["compute_s"] == 0.08
    assert cells["memory_peak_bytes"] is None
    briefs = [column.brief for column in columns if column.brief]
    assert briefs == ["samples/s", "compute", "wait", "memory"]
    inside = columns_of(Measurement, "step_time_s", "throughput", "replicas")
    keys = [column.key for column in inside]
    assert keys[:3] == ["step_time_s", "mad_s", "step_time_from_s"]
    assert keys[3:6] == ["step_time_to_s", "steps_per_sample", "samples"]
    assert keys[6:9] == ["throughput", "throughput_from", "throughput_to"]
