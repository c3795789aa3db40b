"""The page in a real browser, in light and dark.

There is no complaint, nothing is wider than the screen, and no text lies over text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.render.browser import CHROMIUM, Seen, View, look

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="there is no Chromium here to open the page with"
    ),
    pytest.mark.xdist_group("page"),
    pytest.mark.full,
]

VIEWS = [
    View(width, scheme)
    for width in (360, 800, 1100, 1400)
    for scheme in ("light", "dark")
]
PAPER = View(690, "paper")  # the width of A4 within its margins

# Elements that stick out of the page, but for what lies in a box that scrolls.
_STICK_OUT = """[...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('.scroll') && !e.classList.contains('scroll')) return false;
  const r = e.getBoundingClientRect();
  return r.width && (r.right > document.documentElement.clientWidth + 1 || r.left < -1);
}).map(e => e.tagName + '.' + e.className).slice(0, 5)
"""
# Text of a chart that another text covers, or that is cut off by the chart's edge.
_TEXT = """[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).flatMap(svg => {
  const box = svg.getBoundingClientRect(), found = [];
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  texts.forEach(([a, p], i) => {
    if (p.left < box.left - 2 || p.right > box.right + 2 || p.top < box.top - 2 || p.bottom > box.bottom + 2)
      found.push('cut off: ' + a);
    texts.slice(i + 1).forEach(([b, q]) => {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > 4) found.push(a + ' over ' + b);
    });
  });
  return found;
})
"""
_SMALLEST = """Math.min(
  ...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height).filter(h => h)
)
"""
# Words of a table that are broken over two lines. A name with digits and dashes, as a UUID, may be.
_BROKEN = """[...document.querySelectorAll('td, th')].flatMap(cell => {
  const found = [], walker = document.createTreeWalker(cell, 4);
  while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/[A-Za-z]{2,}/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, word.index);
    range.setEnd(walker.currentNode, word.index + word[0].length);
    const tops = [...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top));
    if (new Set(tops).size > 1) found.push(word[0]);
  }
  return found;
}).slice(0, 5)
"""

QUESTIONS = {
    "width": "window.innerWidth",
    "dark": "window.matchMedia('(prefers-color-scheme: dark)').matches",
    "paper": "window.getComputedStyle(document.body).backgroundColor",
    "scroll_width": "document.documentElement.scrollWidth",
    "stick_out": _STICK_OUT,
    "scroll": (
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + "
        "1).length"
    ),
    "devices": (
        "[...document.querySelectorAll('.devices')].every(e => e.scrollWidth < "
        "e.parentElement.clientWidth + 2)"
    ),
    "text": _TEXT,
    "broken": _BROKEN,
    "smallest": _SMALLEST,
    "asked_for": "window.performance.getEntriesByType('resource').map(e => e.name)",
}


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def seen(page: Path) -> Seen:
    """All views, from one start of Chromium."""
    return look(page, [*VIEWS, PAPER], QUESTIONS, page.parent)


@pytest.mark.full
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
    assert found["paper"] == (
        "rgb(21, 22, 26)" if view.look == "dark" else "rgb(255, 255, 255)"
    )


def test_on_paper_it_is_light_and_nothing_is_cut_off(seen: Seen) -> None:
    found = seen.answers[-1]
    assert found["paper"] == "rgb(255, 255, 255)"
    assert found["scroll_width"] <= PAPER.width
    assert found["scroll"] == 0
