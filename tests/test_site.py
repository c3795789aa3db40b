"""The manual's site, which scripts/docs builds: its pages, and what is built of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gpubalance.guide import names
from scripts.site.pages import SiteError, groups, navigation, page, places, write_pages
from tests.cli.program import ROOT
from tests.guide.documents import read

CHAPTERS = set(names())
PLACES = places(CHAPTERS)
OF_TRAIN = "gpubalance/guide/train.md"


def test_the_navigation_is_the_readme_s_table() -> None:
    found = groups(read("README"), CHAPTERS)
    assert len(found) == 5
    assert found["results"][:2] == ["numbers", "results"]
    made = navigation(found)
    assert made.count("```{toctree}") == 6  # with the pages for developers
    for chapters in found.values():
        lines = "\n".join(f"{name} <guide/{name}>" for name in chapters)
        assert f"\n\n{lines}\n```\n" in made


@pytest.mark.parametrize(
    ("change", "chapters"),
    [
        ("[probe](gpubalance/guide/probe.md), ", CHAPTERS),
        ("", CHAPTERS | {"probes"}),
        ("", CHAPTERS - {"probe"}),
    ],
)
def test_a_chapter_that_only_one_of_folder_and_table_has_is_named(
    change: str, chapters: set[str]
) -> None:
    readme = read("README")
    assert change in readme
    with pytest.raises(SiteError, match=r"once: probes?$"):
        groups(readme.replace(change, ""), chapters)


REFERENCES = {
    "see the chapter numbers.": "see the chapter [numbers](numbers.md).",
    "The chapter\nrun has it": "The chapter\n[run](run.md) has it",
    "see `gpubalance guide data`": "see [`gpubalance guide data`](data.md)",
    "the chapter nobody wrote": "the chapter nobody wrote",
    "`# see the chapter data`": "`# see the chapter data`",
    "```python\n# the chapter data\n```": "```python\n# the chapter data\n```",
    "[the chapter data](data.md)": "[the chapter data](data.md)",
    "`gpubalance guide NAME`": "`gpubalance guide NAME`",
    "one\n<!-- example -->\ntwo": "one\n\ntwo",
    "[x](../../README.md#limits)": "[x](../index.md#limits)",
    "[y](https://a.b/c.md), [z](#here)": "[y](https://a.b/c.md), [z](#here)",
}


@pytest.mark.parametrize(("text", "expected"), REFERENCES.items(), ids=str)
def test_a_reference_in_a_chapter_is_a_link_on_the_site(
    text: str, expected: str
) -> None:
    assert page(text, OF_TRAIN, PLACES) == expected


def test_links_of_the_home_page_hold_on_the_site() -> None:
    text = "![x](.github/balance.svg) [a](gpubalance/guide/run.md) see the chapter run"
    made = "![x](balance.svg) [a](guide/run.md) see the chapter [run](guide/run.md)"
    assert page(text, "README.md", PLACES) == made


def test_a_link_to_what_is_not_on_the_site_is_refused() -> None:
    with pytest.raises(SiteError, match=r"train\.md links to \.\./text\.py"):
        page("[it](../text.py)", OF_TRAIN, PLACES)


def test_lines_of_a_page_are_the_file_s(tmp_path: Path) -> None:
    """So a warning about a page names the line to mend."""
    write_pages(tmp_path)
    for name in CHAPTERS:
        made = (tmp_path / "guide" / f"{name}.md").read_text(encoding="utf-8")
        assert made.count("\n") == read(name).count("\n")
        assert "<!--" not in made


def build(folder: Path, *root: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site as scripts/docs does."""
    pytest.importorskip("sphinx", reason="no Sphinx: it needs Python 3.11 or newer")
    command: list[str | Path] = [sys.executable, "-m", "scripts.site", folder, *root]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


class Html(HTMLParser):
    """A page's targets of links, what it loads, and the names that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.comments: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.names.add(has.get("id", ""))
        if "src" in has:
            self.loads.append(has["src"])
        if "href" in has:
            found = self.links if tag == "a" else self.loads
            found.append(has["href"])

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def inside(links: list[str]) -> Iterator[tuple[str, str]]:
    """The path and the fragment of each link that stays on the site."""
    for link in links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            yield unquote(parts.path), unquote(parts.fragment)


@pytest.mark.full
@pytest.mark.xdist_group("site")
def test_the_site_has_each_chapter_and_no_dead_link(site: Path) -> None:
    pages = {path: Html(path) for path in site.rglob("*.html")}
    for name in CHAPTERS:
        html = pages[site / "guide" / f"{name}.html"]
        assert not any("example" in one or "fields" in one for one in html.comments)
    for path, html in pages.items():
        for target, name in inside(html.links + html.loads):
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), f"{path}: {target}"
            if name and found in pages:
                assert name in pages[found].names, f"{path}: {target}#{name}"
    home = {target for target, _ in inside(pages[site / "index.html"].links)}
    assert home >= {"contributing.html", "security.html", "changelog.html"}


@pytest.mark.full
@pytest.mark.xdist_group("site")
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        html = Html(path)
        assert len(list(inside(html.loads))) == len(html.loads), path
    for path in site.rglob("*.css"):
        loaded = re.findall(r"@import|url\(\s*['\"]?(?:https?:)?//", path.read_text())
        assert not loaded, path
