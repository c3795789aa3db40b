"""The chapters that `gpubalance guide` shows, and what finds them.

A chapter is a Markdown file here: its name is the command's argument, its first line the title, and
its first paragraph, one line, what the list says of it. What one reads before anything else belongs
in README.md instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

_COMMENT = re.compile(r"(?m)^<!--.*-->\n")
_BETWEEN_PARAGRAPHS = re.compile(r"\n\n+|\n(?=- |\d+\. |\|)")


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


def passages(text: str, word: str, width: int) -> list[str]:
    """Where a chapter has the word, in any case: at most one excerpt of each paragraph.

    A paragraph is also an item of a list or a row of a table. The excerpts are at most `width`
    long; those in which it is a whole word come first.
    """
    whole = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    as_words, as_parts = [], []
    for paragraph in _BETWEEN_PARAGRAPHS.split(text):
        line = " ".join(paragraph.split()).strip("#|- ")
        match = whole.search(line)
        part = line.lower().find(word.lower())
        if match is not None:
            as_words.append(_excerpt(line, match.start(), width))
        elif part >= 0:
            as_parts.append(_excerpt(line, part, width))
    return as_words + as_parts


def _excerpt(line: str, place: int, width: int) -> str:
    """The part of a line around a place, from the beginning of a word to the end of one."""
    begins = max(0, min(place - width // 3, len(line) - width))
    excerpt = line[begins : begins + width]
    if begins:
        excerpt = f"…{excerpt.partition(' ')[2]}"
    if begins + width < len(line):
        excerpt = f"{excerpt.rpartition(' ')[0]}…"
    return excerpt


def read_chapters() -> list[Chapter]:
    """All of them."""
    return [read_chapter(name) for name in names()]
