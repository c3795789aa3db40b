"""Every number behind a section's answer and charts."""

from __future__ import annotations

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Table
from gpubalance.render.report.tables import alone, at_once, facts, joint, layers, planned


def tables_of(subject: Subject) -> tuple[Table, ...]:
    """The tables in the order of the charts: what devices gave together, the plan, each device alone, the rest."""
    return (
        *at_once.tables(subject),
        *layers.tables(subject),
        *joint.tables(subject),
        *planned.tables(subject),
        *alone.tables(subject),
        *at_once.long_tables(subject),
        *layers.long_tables(subject),
        *joint.long_tables(subject),
        *facts.tables(subject),
    )
