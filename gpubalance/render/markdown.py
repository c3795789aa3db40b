"""Markdown on a terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table


class _Folded(TableElement):
    """A table that breaks long words: Rich would cut them, and with them the names of fields."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class Chapter(Markdown):
    """A text whose tables lose nothing, however narrow the terminal is."""

    elements = {**Markdown.elements, "table_open": _Folded}  # noqa: RUF012  (Rich declares it so)
