"""A table of a report: its title, its columns, and its rows in the result's own units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpubalance.render.fields import Cell, Column, named
from gpubalance.settings.record import Shown

Lead = Mapping[str, Any]

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


def table(
    id_: str,
    title: str,
    rows: Iterable[tuple[Lead, Any]],
    columns: Sequence[Column] = (),
    note: str = "",
    *,
    long: bool = False,
) -> Iterator[Table]:
    """A table whose rows are what leads each and the columns of its record, without columns that no row knows.

    None without rows.
    """
    listed = list(rows)
    if not listed:
        return
    texts = {key for lead, _ in listed for key, cell in lead.items() if isinstance(cell, str)}
    leads = [named(key, _LEADS.get(key, Shown()), text=key in texts) for key in listed[0][0]]
    cells = [(*lead.values(), *(column.value(record) for column in columns)) for lead, record in listed]
    known = [place for place, column in enumerate(zip(*cells, strict=True)) if any(cell is not None for cell in column)]
    heads = (*leads, *columns)
    yield Table(
        id_,
        title,
        tuple(heads[place] for place in known),
        tuple(tuple(row[place] for place in known) for row in cells),
        note,
        long,
    )
