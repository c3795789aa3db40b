"""A table of a report: its title, its columns, and its rows in the result's own units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from gpubalance.render.fields import Cell, Column, columns_of, named
from gpubalance.render.table import Grid
from gpubalance.settings.record import Record, Shown

Lead = Mapping[str, Any]
# A row is what leads it, and the record that has the other cells; None if there are none.
Rows = Iterable[tuple[Lead, Record | None]]

# What leads a row, or is computed for it, where its name does not say all.
_LEADS = {
    "sample": Shown("timing"),
    "at_s": Shown("ended at", "s"),
    "cause": Shown("from the solo sum to what they give together"),
    "rate": Shown("throughput", "samples/s"),
    "part": Shown("of the solo sum", "%"),
    "solo_sum": Shown(unit="samples/s"),
    "even_global_batch": Shown("even split's"),
    "of": Shown("split"),
    "joint_batches": Shown("one model on all, split"),
    "joint_throughput": Shown("gave"),
    "held_against": Shown("compared with"),
    "measured_factor": Shown("by the noise scale"),
}


class Table(NamedTuple):
    """Rows of cells in the result's own units. Markdown leaves out `long` tables."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    long: bool = False

    def grid(self, text: Callable[[Cell, Column], str], heads: Sequence[str], most: int | None = None) -> Grid:
        """The same as texts under these heads, at most so many rows."""
        rows = (
            [text(cell, column) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows[:most]
        )
        return Grid([heads, *rows], [place for place, column in enumerate(self.columns) if column.is_text])


class Tables(list[Table]):
    """A result's tables."""

    def add(
        self,
        id_: str,
        title: str,
        rows: Rows,
        *names: str,
        of: type[Record] | None = None,
        note: str = "",
        long: bool = False,
    ) -> None:
        """A table whose rows are what leads each, and the fields of these names of its record, or all its figures.

        These are the fields of its class, or of the base `of`.

        No table without rows, and no column that no row knows.
        """
        listed = list(rows)
        if not listed:
            return
        first, record = listed[0]
        texts = {key for lead, _ in listed for key, cell in lead.items() if isinstance(cell, str)}
        leads = [named(key, _LEADS.get(key, Shown()), text=key in texts) for key in first]
        columns = columns_of(of or type(record), *names) if record is not None else ()
        cells = [(*lead.values(), *(column.value(one) for column in columns)) for lead, one in listed]
        known = [any(cell is not None for cell in column) for column in zip(*cells, strict=True)]
        heads, *kept = (tuple(compress(row, known)) for row in ((*leads, *columns), *cells))
        self.append(Table(id_, title, heads, tuple(kept), note, long))


Add = Callable[..., None]  # `Tables.add`
