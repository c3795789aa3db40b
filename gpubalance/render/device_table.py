"""A terminal's table of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpubalance.numbers.units import format_percent
from gpubalance.render.cells import short
from gpubalance.render.columns import Column, columns_of
from gpubalance.render.table import WIDTH, TextTable, shorten, shorten_front
from gpubalance.settings.batch_split import share_text
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record

_NAME_WIDTH = 22

# What stands before a record's figures: a text of the record for each head.
Leads = Mapping[str, Callable[[Any], str]]


def names_of(devices: Sequence[Device]) -> Callable[[Any], str]:
    """What leads a row of a table of devices, with its name."""
    return lambda record: shorten(devices[record.device].name, _NAME_WIDTH)


def batch_of(record: Any) -> str:
    """What leads a row with its batch: `820`, or `1640 = 2×820`."""
    return share_text(record.batch, record.micro_batch)


def device_table(
    devices: Sequence[Device], records: Sequence[Any], leads: Leads
) -> TextTable:
    """A row for each record: its device, its leads, and its fields that have a brief name.

    Beside compute stands how much of the step it is. Names, which have no head, make room for the
    others; their ends are kept, which tell one model from another.
    """
    columns = [column for column in columns_of(type(records[0])) if column.brief]
    rows = [["device", *leads]]
    rows[0] += [column.brief for column in columns]
    for record in records:
        row = [devices[record.device].label]
        row += [text_of(record) for text_of in leads.values()]
        row += [_figure(column, record) for column in columns]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    if excess > 0 and "" in leads:
        for row in rows:
            row[1] = shorten_front(row[1], widths[1] - excess)
    return TextTable(rows)


def _figure(column: Column, record: Record) -> str:
    if getattr(record, "batch", None) == 0:
        return ""
    text = short(column.value(record), column)
    part = getattr(record, "utilisation", None)
    if column.key == "compute_s" and part is not None:
        text += f" ({format_percent(part)})"
    return text
