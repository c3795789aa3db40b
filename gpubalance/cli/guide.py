"""`gpubalance guide`: the manual, offline."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpubalance.errors import UsageError
from gpubalance.text import clean

_WIDEST = 110  # columns; longer lines are hard to read


def _complete() -> list[tuple[str, str]]:
    from gpubalance.guide.chapters import read_chapters

    return [(chapter.name, chapter.title) for chapter in read_chapters()]


def guide(
    chapter: Annotated[
        str | None,
        typer.Argument(
            metavar="CHAPTER",
            help="What to read about. Default: list the chapters.",
            autocompletion=_complete,
        ),
    ] = None,
) -> None:
    """Example: gpubalance guide train"""
    from gpubalance.cli.output import say
    from gpubalance.guide.chapters import names, read_chapter

    if chapter is None:
        say(_list(), sys.stdout)
    elif chapter not in names():
        raise UsageError(
            f"the guide has no chapter {clean(chapter, 40)}",
            remedy="gpubalance guide lists them",
        )
    elif sys.stdout.isatty():
        _show(read_chapter(chapter).text)
    else:
        say(read_chapter(chapter).text.rstrip(), sys.stdout)


def _list() -> str:
    from gpubalance.guide.chapters import read_chapters

    chapters = read_chapters()
    width = max(len(chapter.name) for chapter in chapters)
    lines = [f"{chapter.name:{width}}  {chapter.summary}" for chapter in chapters]
    lines += ["", "next: gpubalance guide CHAPTER"]
    return "\n".join(lines)


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
