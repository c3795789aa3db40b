"""The live screen's figures: bars as long as their times, who waits for whom, and the total."""

from __future__ import annotations

import pytest

from gpubalance.render.live import (
    DeviceRow,
    LiveSplit,
    _bar,
    header_lines,
    joint_lines,
    own_lines,
)
from tests.render.measurements import PAIR
from tests.support.altered import altered
from tests.support.cases import cases


def split_of(first_s: float | None, second_s: float, step_s: float | None) -> LiveSplit:
    split = LiveSplit(PAIR, (60, 40), step_s)
    split.rows[0].compute_s = first_s
    split.rows[1].compute_s = second_s
    return split


def texts(split: LiveSplit, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in joint_lines({"": split}, width, height)]


@cases(
    "first_s, second_s, step_s, bars",
    (0.05, 0.10, 0.20, ("█████░░░░░··········", "██████████··········")),
    (0.20, 0.10, 0.20, ("█" * 20, "██████████░░░░░░░░░░")),
    # Stamped steps may be slower than the others.
    (0.20, 0.10, 0.10, ("█" * 20, "██████████░░░░░░░░░░")),
    (0.10, 0.10, None, (" " * 20, " " * 20)),
    (None, 0.10, 0.20, (" " * 20, "██████████··········")),
)
def test_a_bar_is_a_step_from_left_to_right(
    first_s: float | None, second_s: float, step_s: float | None, bars: tuple[str, str]
) -> None:
    split = split_of(first_s, second_s, step_s)
    assert tuple(_bar(split, row, 20).plain for row in split.rows) == bars


def test_an_update_counts_as_busy() -> None:
    split = split_of(0.05, 0.10, 0.20)
    split.rows[0].update_s = 0.03
    assert split.rows[0].busy_s == pytest.approx(0.08)
    assert DeviceRow(PAIR[0], 8, update_s=0.5).busy_s == 0.5
    assert _bar(split, split.rows[0], 20).plain == "████████░░··········"


@cases(
    "first_s, second_s, told",
    (0.05, 0.14, "GPU:0 waits 90.0 ms of each step for GPU:1"),
    (0.14, 0.05, "GPU:1 waits 90.0 ms of each step for GPU:0"),
    (0.1000, 0.1019, "they finish together"),
    (0.1000, 0.1021, "GPU:0 waits 2.10 ms of each step for GPU:1"),
)
def test_who_waits_for_whom(first_s: float, second_s: float, told: str) -> None:
    assert told in texts(split_of(first_s, second_s, 0.2))


def test_the_total_has_the_last_rates() -> None:
    split = split_of(0.1, 0.1, 0.2)
    assert "total 100  …  " in texts(split)
    split.rates.extend([100.0, 200.0])
    assert "total 100  200 samples/s  ▁█" in texts(split)
    for rate in range(100):
        split.rates.append(float(rate))
    assert len(split.rates) == 60
    (total,) = [line for line in texts(split) if line.startswith("total")]
    assert total.startswith("total 100  99.0 samples/s  ")
    assert len(total) == len("total 100  99.0 samples/s  ") + 30
    (total,) = [line for line in texts(split, 32) if line.startswith("total")]
    assert len(total) == 32


def test_as_many_devices_as_fit_have_a_row() -> None:
    split = LiveSplit(PAIR * 3, (1, 2, 3, 4, 5, 6))
    assert "… and 4 more devices" in texts(split, height=8)
    assert "… and 5 more devices" in texts(split, height=1)
    assert not any(line.startswith("…") for line in texts(split, height=12))
    assert joint_lines({}, 80, 24) == []
    assert own_lines([DeviceRow(PAIR[0], 8)], 13, 24)[0].plain == "device  batch"


def test_rows_are_aligned_where_a_name_is_twice_as_wide() -> None:
    wide = altered(PAIR[0], name="显卡🚀")
    lines = joint_lines({"": LiveSplit((wide, PAIR[1]), (8, 8))}, 80, 24)
    assert len({line.cell_len for line in lines[:3]}) == 1


@cases(
    "width, lines",
    (30, ["measuring           2 min left"]),
    (21, ["measuring  2 min left"]),
    (20, ["measuring", "2 min left"]),
)
def test_what_is_left_stands_at_the_right_if_room(width: int, lines: list[str]) -> None:
    shown = [line.plain for line in header_lines("measuring", "2 min left", width)]
    assert shown == lines
    assert [line.plain for line in header_lines("measuring", "", 80)] == ["measuring"]
