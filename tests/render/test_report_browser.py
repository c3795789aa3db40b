"""The page in a real browser, in light and dark.

There is no complaint, nothing is wider than the screen, and no text lies over text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.render.browser import CHROMIUM, Seen, View, look

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
    pytest.mark.xdist_group("page"),
    pytest.mark.full,
]

WIDTHS = (360, 800, 1100, 1400)
VIEWS = [View(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
PAPER = View(690, "paper")  # the width of A4 within its margins

_ASKED = Path(__file__).with_name("questions.js").read_text(encoding="utf-8")
QUESTIONS = dict(re.findall(r"(?s)//// (\w+)\n(?://[^\n]*\n)?(.*?)\n(?=\n|\Z)", _ASKED))


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def seen(page: Path) -> Seen:
    """All views, from one start of Chromium."""
    return look(page, [*VIEWS, PAPER], QUESTIONS, page.parent)


def test_the_page_opens_without_complaint(seen: Seen) -> None:
    assert seen.console == []


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.width}-{view.look}")
def test_it_fits_and_its_text_can_be_read(seen: Seen, view: View) -> None:
    found = seen.answers[VIEWS.index(view)]
    assert (found["width"], found["dark"]) == (view.width, view.look == "dark")
    assert found["scroll_width"] <= view.width
    assert found["devices"]  # what matters most is not behind a scroll bar
    assert found["stick_out"] == found["text"] == found["asked_for"] == []
    assert found["broken"] == []
    assert found["smallest"] > 10
    paper = "rgb(21, 22, 26)" if view.look == "dark" else "rgb(255, 255, 255)"
    assert found["paper"] == paper


def test_on_paper_it_is_light_and_nothing_is_cut_off(seen: Seen) -> None:
    found = seen.answers[-1]
    assert found["paper"] == "rgb(255, 255, 255)"
    assert found["scroll_width"] <= PAPER.width
    assert found["scroll"] == 0
