"""What a result is of: devices, settings, model and environment."""

from __future__ import annotations

from gpubalance.render.report.subject import Subject
from gpubalance.render.report.table import Cell, Column, Table, make
from gpubalance.results.common import Environment, Model
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe

_DEVICES = (
    Column("device", "device", "text"),
    Column("name", "name", "text"),
    Column("uuid", "UUID", "text"),
    Column("bus_id", "bus id", "text"),
    Column("memory_bytes", "memory", "GiB"),
    Column("simulated", "simulated"),
)
_SETTINGS = (Column("setting", "setting", "text"), Column("value", "value", "text"))


def tables(subject: Subject) -> tuple[Table, ...]:
    """The same of every kind of result."""
    devices = [[d.label, d.name, d.uuid, d.bus_id, d.memory_bytes, d.simulated] for d in subject.devices]
    return (
        *make("devices", "Devices", _DEVICES, devices),
        *make("settings", "Settings and model", _SETTINGS, _settings(subject)),
        *make("environment", "Environment", _SETTINGS, _environment(subject)),
    )


def _settings(subject: Subject) -> list[list[Cell]]:
    result = subject.result
    settings = result.settings
    rows: list[list[Cell]] = [
        ["model", settings.model],
        ["precision", settings.precision],
        ["XLA", settings.xla],
        ["input", settings.input],
        ["all-reduce", settings.all_reduce],
        ["created", result.created],
    ]
    model: Model | None = result.model
    if model is not None:
        rows += [["parameters", model.parameters], ["gradient bytes", model.gradient_bytes]]
    if isinstance(result, Probe):
        rows += [
            ["batch multiple", result.batch_multiple],
            ["margin, bytes", result.margin_bytes],
            ["largest batch asked for", result.max_batch],
            ["devices measured at once", result.parallel],
        ]
    elif isinstance(result, Plan):
        rows += [
            ["probed", result.probed],
            ["batch multiple", result.batch_multiple],
            ["margin, bytes", result.margin_bytes],
            ["sync planned with, seconds", result.sync_s],
        ]
    return rows


def _environment(subject: Subject) -> list[list[Cell]]:
    found: Environment | None = None
    if isinstance(subject.result, Probe):
        found = subject.result.environment
    elif subject.run is not None:
        found = subject.run.environment
    return [] if found is None else [[name, getattr(found, name)] for name in Environment.model_fields]
