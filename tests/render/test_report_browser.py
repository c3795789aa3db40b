"""The page in a real browser: no complaint, nothing wider than the screen, no text over text, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.render.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to open the page with")

WIDTHS = (360, 800, 1400)

# Elements that stick out of the page, but for what lies in a box that scrolls.
_STICK_OUT = """
[...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('.scroll') && !e.classList.contains('scroll')) return false;
  const r = e.getBoundingClientRect();
  return r.width && (r.right > document.documentElement.clientWidth + 1 || r.left < -1);
}).map(e => e.tagName + '.' + e.className).slice(0, 5)
"""
# Text of a chart that another text covers, or that is cut off by the chart's edge.
_TEXT = """
[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).flatMap(svg => {
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
_SMALLEST = """
Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height).filter(h => h))
"""


@pytest.fixture(scope="module")
def page(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_without_complaint_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.events.clear()
    browser.show(page, width, dark=dark)
    assert browser.complaints == []
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(_STICK_OUT) == []
    assert browser.evaluate(_TEXT) == []
    assert browser.evaluate(_SMALLEST) > 10
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(21, 22, 26)" if dark else "rgb(255, 255, 255)")
    picture = page.with_name(f"report-{width}-{'dark' if dark else 'light'}.png")
    browser.screenshot(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000


def test_on_paper_it_is_light_and_nothing_is_cut_off(browser: Browser, page: Path) -> None:
    browser.show(page, 690, dark=True)  # the width of A4 within its margins
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 690
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    ) == 0  # fmt: skip
    browser.pdf(page.with_suffix(".pdf"))
    assert page.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_a_page_with_a_script_would_be_found_out(browser: Browser, page: Path, html: str) -> None:
    """What the first test looks for can fail."""
    bad = page.with_name("bad.html")
    bad.write_text(
        html.replace(
            "</main>", "<script>1</script><img src='https://localhost/x'><p style='min-width:3000px'>x</p></main>"
        ),
        encoding="utf-8",
    )
    browser.events.clear()
    browser.show(bad, 800, dark=False)
    assert any("script" in complaint for complaint in browser.complaints)
    assert browser.evaluate("document.documentElement.scrollWidth") > 800
    assert browser.evaluate(_STICK_OUT) != []
