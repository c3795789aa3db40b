"""The chapters of this folder: adding a file adds a chapter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

_COMMENT = re.compile(r"(?m)^<!--.*-->\n")


@dataclass(frozen=True)
class Chapter:
    """`text` is Markdown, without the comments that mark its generated parts."""

    name: str
    title: str
    summary: str
    text: str


def names() -> list[str]:
    """Every chapter's name, in alphabetical order."""
    files = resources.files(__package__).iterdir()
    return sorted(
        file.name.removesuffix(".md") for file in files if file.name.endswith(".md")
    )


def read_chapter(name: str) -> Chapter:
    """The chapter of that name. Raises FileNotFoundError."""
    text = (
        resources.files(__package__).joinpath(f"{name}.md").read_text(encoding="utf-8")
    )
    title, summary, _ = text.split("\n\n", 2)
    return Chapter(name, title.removeprefix("# "), summary, _COMMENT.sub("", text))


def read_chapters() -> list[Chapter]:
    """All of them."""
    return [read_chapter(name) for name in names()]
