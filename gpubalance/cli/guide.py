"""`gpubalance guide`: the manual, offline."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from typing import Annotated

import typer

from gpubalance.errors import UsageError
from gpubalance.text import clean

_WIDEST = 110  # columns; longer lines are hard to read
_EXCERPT = 72  # characters of a place that has the word
_MOST_PLACES = 3  # that are shown of a chapter
_MOST_NAMED = 5  # chapters, in an error


def _complete() -> list[tuple[str, str]]:
    from gpubalance.guide import read_chapters

    return [(chapter.name, chapter.title) for chapter in read_chapters()]


def guide(
    chapter: Annotated[
        str | None,
        typer.Argument(
            metavar="CHAPTER",
            help="The chapter to read. Default: list the chapters.",
            autocompletion=_complete,
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="WORD",
            help="List the chapters that have this word, with the lines around it.",
        ),
    ] = None,
) -> None:
    """It has chapters on measuring, training, files, troubleshooting and more.

    Example: gpubalance guide train
    """
    from gpubalance.cli.output import say
    from gpubalance.guide import names, read_chapter

    if search is not None:
        if chapter is not None:
            raise UsageError(
                "--search always searches all chapters: leave out the chapter",
                remedy=f"gpubalance guide --search {shlex.quote(search)}",
            )
        say(_found(search), sys.stdout)
    elif chapter is None:
        say(_list(), sys.stdout)
    elif chapter not in names():
        raise UsageError(
            f"the guide has no chapter {clean(chapter, 40)}", remedy=_meant(chapter)
        )
    elif sys.stdout.isatty():
        _show(read_chapter(chapter).text)
    else:
        say(read_chapter(chapter).text.rstrip(), sys.stdout)


def _meant(word: str) -> str:
    """The chapter of a similar name and those that have the word, else that there is a list."""
    from gpubalance.guide import names

    lines = []
    near = difflib.get_close_matches(word.lower(), names(), n=1)
    if near:
        lines.append(f"did you mean gpubalance guide {near[0]}?")
    having = [name for name, _, _ in _chapters_with(word)]
    if having:
        search = f"gpubalance guide --search {shlex.quote(clean(word, 40))}"
        lines.append(f"{search} finds it in {', '.join(having[:_MOST_NAMED])}")
    return "\n".join(lines) or "gpubalance guide lists them"


def _found(word: str) -> str:
    """The chapters that have the word, each with some places. Raises UsageError for none."""
    from gpubalance.cli.output import width
    from gpubalance.render.table import prose

    having = _chapters_with(word)
    if not having:
        raise UsageError(
            f"no chapter contains {clean(word, 40)!r}",
            remedy="gpubalance guide lists the chapters",
        )
    lines = []
    for name, summary, places in having:
        lines += prose(f"{name}: {summary}", width())
        for place in places[:_MOST_PLACES]:
            lines += prose(place, width(), "    ")
        if len(places) > _MOST_PLACES:
            lines.append(f"    and {len(places) - _MOST_PLACES} more")
    lines += ["", _next()]
    return "\n".join(lines)


def _chapters_with(word: str) -> list[tuple[str, str, list[str]]]:
    """Name, summary and places of the chapters that have the word, the one with most first."""
    from gpubalance.guide import passages, read_chapters

    having = []
    for chapter in read_chapters():
        places = passages(chapter.text, word, _EXCERPT) if word.strip() else []
        if places:
            having.append((chapter.name, chapter.summary, places))
    return sorted(having, key=lambda found: (word.lower() != found[0], -len(found[2])))


def _list() -> str:
    from gpubalance.cli.output import width
    from gpubalance.guide import read_chapters
    from gpubalance.render.table import prose

    chapters = read_chapters()
    longest = max(len(chapter.name) for chapter in chapters)
    lines = []
    for chapter in chapters:
        text = f"{chapter.name:{longest}}  {chapter.summary}"
        lines += prose(text, width(), hanging=" " * (longest + 2))
    lines += ["", _next()]
    return "\n".join(lines)


def _next() -> str:
    """How this user types the next command."""
    from gpubalance.cli.next_command import program

    return f"next: {program()} guide CHAPTER"


def _show(text: str) -> None:
    """Shows the text rendered, one page at a time."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown, TableElement
    from rich.table import Table

    class FoldedTable(TableElement):
        """A table that breaks long words, such as names of fields, which Rich would cut."""

        def __rich_console__(
            self, console: Console, options: ConsoleOptions
        ) -> RenderResult:
            for part in super().__rich_console__(console, options):
                if isinstance(part, Table):
                    for column in part.columns:
                        column.overflow = "fold"
                yield part

    class FoldedText(Markdown):
        """A text whose tables lose nothing, however narrow the terminal is."""

        # As Rich declares it.
        elements = {**Markdown.elements, "table_open": FoldedTable}  # noqa: RUF012

    console = Console()
    console.width = min(console.width, _WIDEST)
    # As git does: colours, and no pager for text that fits the screen.
    os.environ.setdefault("LESS", "-FRX")
    with console.pager(styles=console.color_system is not None):
        console.print(FoldedText(text))
