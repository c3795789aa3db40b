"""Lines of a terminal: tables, bars of ticks, and texts that are cut."""

from __future__ import annotations

from gpubalance.render.table import (
    BLANK,
    Paragraph,
    TextTable,
    lines_of,
    prose,
    shorten,
    shorten_front,
    sparkline,
    summary,
    table,
    warning_lines,
)
from gpubalance.results.common import Warning_
from tests.support.cases import cases

ROWS = [("device", "name", "rate"), ("GPU:0", "A", "1000"), ("GPU:1", "", "80")]


def test_columns_are_aligned_under_their_heads() -> None:
    aligned = ["device  name  rate", "GPU:0   A     1000", "GPU:1           80"]
    assert table(ROWS, left=(0, 1)) == aligned
    assert table(ROWS, left=(0,), indent="  ")[1] == "  GPU:0      A  1000"
    assert table([*ROWS, ("a long heading",)])[-1] == "a long heading"


def test_a_table_that_does_not_fit_becomes_sentences() -> None:
    assert table(ROWS, left=(0, 1), width=18) == table(ROWS, left=(0, 1))
    narrow = ["GPU:0: name A, rate", "  1000", "GPU:1: rate 80"]
    assert table(ROWS, left=(0, 1), width=17) == narrow
    without_head = [("device", "", "rate"), ("GPU:0", "A", "1000")]
    assert table(without_head, width=3) == ["GPU:0 A: rate 1000"]


def test_columns_are_aligned_where_characters_are_two_wide() -> None:
    rows = [("", "name", "rate"), ("GPU:0", "显卡", "10"), ("GPU:1", "🚀", "显")]
    left = ["       name  rate", "GPU:0  显卡    10", "GPU:1  🚀      显"]
    assert table(rows, left=(0, 1), width=17) == left
    assert table(rows, left=(0, 1), width=16)[0].startswith("GPU:0: name 显卡")


@cases(
    "values, minimum, ticks",
    ([], None, ""),
    ([0, 1, 2, 3, 4, 5, 6, 7], None, "▁▂▃▄▅▆▇█"),
    ([5, 10], 0, "▅█"),
    ([100, 98], None, "▅▅"),
    ([100, 97.9], None, "█▁"),
    ([0, 0], None, "▅▅"),
    ([3], 0, "█"),
)
def test_ticks_are_as_high_as_their_values(
    values: list[float], minimum: float | None, ticks: str
) -> None:
    assert sparkline(values, minimum=minimum) == ticks


@cases(
    "width, end, front", (6, "abcdef", "abcdef"), (5, "abcd…", "…cdef"), (2, "a…", "…f")
)
def test_texts_are_cut_to_a_width(width: int, end: str, front: str) -> None:
    assert shorten("abcdef", width) == end
    assert shorten_front("abcdef", width) == front


@cases(
    "width, end, front",
    (8, "显卡显卡", "显卡显卡"),
    (7, "显卡显…", "…卡显卡"),
    (6, "显卡 …", "…显卡"),
    (2, " …", "…"),
)
def test_wide_characters_are_cut_by_their_width(
    width: int, end: str, front: str
) -> None:
    assert shorten("显卡显卡", width) == end
    assert shorten_front("显卡显卡", width) == front


def test_prose_is_wrapped_but_not_behind_a_sign_nor_within_a_word() -> None:
    text = "aaaa bbbb cccc dddd eeee"
    assert prose(f"{text} 1 ± 2 %", 28) == [f"{text} 1", "  ± 2 %"]
    assert prose("aaaa bbbb cccc dddd eeee 1", 3) == ["aaaa bbbb cccc dddd", "  eeee 1"]
    assert prose("x" * 30, 20) == ["x" * 30]
    assert prose(text, 20, "> ", "") == ["> aaaa bbbb cccc", "dddd eeee"]


def test_parts_keep_their_indent_and_empty_lines() -> None:
    texts: list[Paragraph] = ["one", "  two", ""]
    line = "-" * 30
    parts = [*texts, BLANK, TextTable(ROWS), lambda width: ["-" * width]]
    assert lines_of(parts, 30) == [*texts, *table(ROWS, left=(0, 1)), line]


def test_warnings_of_one_kind_are_joined_and_the_next_command_stands_last() -> None:
    alike = [
        Warning_(code="noisy", message="a is noisy", next="measure again"),
        Warning_(code="slow", message="b is slow", next=""),
        Warning_(code="noisy", message="c is noisy", next="measure again"),
    ]
    noisy = ["", "warning noisy: a is noisy; c is noisy"]
    slow = ["warning slow: b is slow", "  → "]
    assert warning_lines(alike) == [*noisy, "  → measure again", *slow]
    assert warning_lines([]) == []
    text = summary(["done"], alike, "go on", ["a", "b"], typed=str.upper)
    trains = "or, after `import gpubalance`, train your own model with it:"
    following = ["", "next: go on", trains, "  a", "  b"]
    upper = ["done", *noisy, "  → MEASURE AGAIN", *slow]
    assert text.splitlines() == [*upper, *following]
    brief = summary([], [], "go on", ["a"]).splitlines()
    assert brief == ["", "next: go on", "or train with it:", "  a"]
    narrow = warning_lines(alike[:1], 24)
    assert narrow == ["", "warning noisy: a is", "  noisy", "  → measure again"]
