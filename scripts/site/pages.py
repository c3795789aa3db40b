"""The site's pages: this repository's Markdown, with links that hold on the site.

They are written for the generator and not kept, so that README.md and the chapters stay the only
source. `gpubalance guide` reads the same files.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = "gpubalance/guide/"
PICTURE = ".github/balance.svg"
_HOME = "README.md"
# The pages that are no chapters: their places on the site, and their names in the navigation.
_DEVELOPERS = {
    "CONTRIBUTING.md": ("contributing.md", "contributing"),
    "gpubalance/README.md": ("code.md", "map of the code"),
    "tests/fake_gpu/README.md": ("fake-gpus.md", "fake GPUs"),
    "SECURITY.md": ("security.md", "security"),
    "CHANGELOG.md": ("changelog.md", "changelog"),
}
_ROW = re.compile(r"(?m)^\| ([^|\n]+) \| (\[[^|\n]+) \|$")
_CHAPTER = re.compile(rf"\]\({GUIDE}(\w+)\.md\)")
_COMMENT = re.compile(r"(?m)^<!--.*-->$")
_FENCED = re.compile(r"(?ms)^( *```.*?^ *```)$")
_COMMAND = re.compile(r"`gpubalance guide (\w+)`")
_CODE_OR_LINK = re.compile(r"(`[^`]*`|\[[^\]]*\]\([^)]*\))")
_REFERENCE = re.compile(r"\b([Tt]he chapter\s+)(\w+)\b")
_TARGET = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


class SiteError(Exception):
    """README.md or another page does not fit the site; the message names what and where."""


def groups(readme: str, chapters: set[str]) -> dict[str, list[str]]:
    """The groups of chapters in README.md's table, each with its chapters in order.

    Raises SiteError if they are not exactly the chapters that there are.
    """
    table = readme.partition("\n## The manual\n")[2]
    found = {name: _CHAPTER.findall(row) for name, row in _ROW.findall(table)}
    listed = [chapter for names in found.values() for chapter in names]
    if sorted(listed) != sorted(chapters):
        differing = sorted(chapters.symmetric_difference(listed)) or sorted(listed)
        raise SiteError(
            "README.md's table of the manual must name each chapter once: "
            + ", ".join(differing)
        )
    return found


def places(chapters: set[str]) -> dict[str, str]:
    """The place on the site of each file that is on it, by its path in the repository."""
    of_chapters = {f"{GUIDE}{name}.md": f"guide/{name}.md" for name in chapters}
    return {
        _HOME: "index.md",
        PICTURE: posixpath.basename(PICTURE),
        **of_chapters,
        **{source: place for source, (place, _) in _DEVELOPERS.items()},
    }


def page(text: str, source: str, places: Mapping[str, str]) -> str:
    """A file's text as a page, with as many lines: comments out, references and links as links.

    Raises SiteError for a link to a file that is not on the site.
    """
    parts = _FENCED.split(_COMMENT.sub("", text))
    # What was split at has odd numbers: blocks of code stay as they are.
    parts[::2] = [_linked(prose, source, places) for prose in parts[::2]]
    return "".join(parts)


def _linked(prose: str, source: str, places: Mapping[str, str]) -> str:
    """Prose in which names of chapters are links, and each link leads to a page."""
    folder = posixpath.dirname(source)

    def chapter_link(name: str, shown: str) -> str:
        path = f"{GUIDE}{name}.md"
        if path not in places:
            return shown
        return f"[{shown}]({posixpath.relpath(path, folder or '.')})"

    def on_site(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if path not in places:
            raise SiteError(f"{source} links to {match[1]}, which is no page")
        here = posixpath.dirname(places[source])
        return f"]({posixpath.relpath(places[path], here or '.')}{match[2] or ''})"

    prose = _COMMAND.sub(lambda match: chapter_link(match[1], match[0]), prose)
    parts = _CODE_OR_LINK.split(prose)
    parts[::2] = [
        _REFERENCE.sub(lambda match: match[1] + chapter_link(match[2], match[2]), part)
        for part in parts[::2]
    ]
    return _TARGET.sub(on_site, "".join(parts))


def navigation(groups: Mapping[str, list[str]]) -> str:
    """The groups as the generator's hidden tables of contents, which make the navigation."""
    entries = {
        name: [f"{chapter} <guide/{chapter}>" for chapter in chapters]
        for name, chapters in groups.items()
    }
    entries["for developers"] = [
        f"{name} <{place.removesuffix('.md')}>" for place, name in _DEVELOPERS.values()
    ]
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {name[0].upper()}{name[1:]}\n\n"
        + "\n".join(lines)
        + "\n```\n"
        for name, lines in entries.items()
    )


def write_pages(folder: Path, root: Path = ROOT) -> None:
    """Writes all pages into an empty folder. Raises SiteError."""
    chapters = {path.stem for path in (root / GUIDE).glob("*.md")}
    on_site = places(chapters)
    for source, place in on_site.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source == PICTURE:
            shutil.copyfile(root / source, target)
            continue
        text = (root / source).read_text(encoding="utf-8")
        made = page(text, source, on_site)
        if source == _HOME:
            made += navigation(groups(text, chapters))
        target.write_text(made, encoding="utf-8")
