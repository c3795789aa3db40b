"""What was measured where: devices, settings, model and environment."""

from __future__ import annotations

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Cell, Table
from gpubalance.render.report.tables.rows import Row, fields, table
from gpubalance.results.common import Environment, shapes_text
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe


def tables(subject: Subject) -> tuple[Table, ...]:
    """The tables that every kind of result has."""
    names = ("name", "uuid", "bus_id", "memory_bytes", "simulated")
    devices: list[Row] = [{"device": device.label, **fields(device, *names)} for device in subject.devices]
    return (
        *table("devices", "Devices", devices),
        *table("settings", "Settings and model", _named(_settings(subject))),
        *table("environment", "Environment", _named(_environment(subject))),
    )


def _named(values: Row) -> list[Row]:
    return [{"setting": name, "value": value} for name, value in values.items()]


def _settings(subject: Subject) -> Row:
    result = subject.result
    settings, model = result.settings, result.model
    rows: dict[str, Cell] = {
        "model": settings.model,
        **({"data": settings.data} if settings.data else {}),
        "precision": settings.precision,
        "XLA": settings.xla,
        "input": settings.input,
        "all-reduce": settings.all_reduce,
        "created": result.created,
    }
    if model is not None:
        rows |= {"parameters": model.parameters, "gradient bytes": model.gradient_bytes}
        rows |= {"input shapes": shapes_text(model.input_shapes)} if model.input_shapes is not None else {}
    if isinstance(result, Plan):
        rows["probed"] = result.probed
    if isinstance(result, (Probe, Plan)):
        rows |= {"batch multiple": result.batch_multiple, "margin, bytes": result.margin_bytes}
    if isinstance(result, Probe):
        rows |= {"largest batch asked for": result.max_batch, "devices measured at once": result.parallel}
    elif isinstance(result, Plan):
        rows["sync planned with, seconds"] = result.sync_s
    return rows


def _environment(subject: Subject) -> Row:
    found = subject.result.environment if isinstance(subject.result, Probe) else None
    ran = subject.run or subject.independent or subject.layers
    if ran is not None:
        found = ran.environment
    return fields(found, *Environment.model_fields) if found is not None else {}
