import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubalance.text import clean


@pytest.mark.parametrize(
    ("dirty", "cleaned"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("a\x1b]0;a window title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1b]0;never ended", "a"),
        ("a\x1bPq;device control\x1b\\b", "ab"),
        ("a\x1bcb\x1b(Bc", "abc"),
        ("two\nlines\r\nand\ta tab", "two lines and a tab"),
        ("  far \x00\x07\x08  apart ", "far apart"),
        ("GTX\u202e0801\u200b", "GTX0801"),
        ("lone\ud800", "lone"),
        ("\x1b", ""),
        ("[red]x[/red] <b>", "[red]x[/red] <b>"),
        ("Grafikkarte Ωmega 显卡", "Grafikkarte Ωmega 显卡"),
    ],
)
def test_nothing_that_a_terminal_acts_on_is_left(dirty: str, cleaned: str) -> None:
    assert clean(dirty) == cleaned


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert clean("x" * 10_000) == "x" * 199 + "…"
    assert clean("x" * 200) == "x" * 200
    assert clean("abc def", limit=5) == "abc…"


ESCAPES = st.sampled_from("\x1b[]\x9b\x07;m\\P")


@given(st.text(alphabet=st.one_of(st.characters(), ESCAPES), max_size=300))
def test_any_text_becomes_one_printable_line_and_stays_so(text: str) -> None:
    once = clean(text, limit=100)
    assert len(once) <= 100
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in once)
    assert clean(once, limit=100) == once
    once.encode()
