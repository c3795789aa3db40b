"""A result to compare: its figures, and the step times that ratios are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.numbers.steady import unquiet
from gpubalance.results.common import Throughput, Warning_
from gpubalance.results.comparison import ComparedDevice, ComparedResult
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers, Stage
from gpubalance.results.plan import Plan, Share
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.records import AnyResult, read_result
from gpubalance.results.run import Replica, Run
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.text import clean

# Warnings that do not concern the compared figures.
_BESIDE = ("even-split-out-of-memory", "stamps-cost", "margin-unknown")

# Samples/s, and the step times that they are from, in order.
Timed = tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Contender:
    """`source` is what the file holds, or the run of a plan that was run.

    `devices` are those of `result.devices`. `parts` add up to the result's throughput, and are
    without step times if nothing ran. `alone` has what each device gave by itself: by batch if it
    was probed, under 0 if it trained a model of its own.
    """

    result: ComparedResult
    source: AnyResult
    devices: tuple[Device, ...]
    parts: list[Timed]
    alone: list[dict[int, Timed]]


def read_contender(path: Path) -> Contender:
    """Reads a result.

    The BadInput for any other file says what it is instead, or which field is damaged.
    """
    source = read_result(path)
    name = clean(str(path), 500)
    warnings = source.warnings
    limits = {}
    if isinstance(source, Plan):
        limits = {share.device: share.limit for share in source.shares}
        if source.run is not None:
            source = source.run
            warnings = (*source.warnings, *warnings)
    if isinstance(source, Independent) and source.throughput is None:
        raise BadInput(
            f"{name}: interrupted before the devices were measured at the same time",
            remedy="finish it: gpubalance independent … -o FILE --resume",
        )
    used = used_devices(source)
    devices = tuple(source.devices[part.device] for part in used)
    alone = [_alone(part) for part in used]
    if isinstance(source, Run | Layers):
        parts = [(source.throughput.median, source.step_time_s.samples)]
    else:
        parts = [rates.get(0, (0.0, ())) for rates in alone]
    compared = []
    timed: list[Timed] = []
    for device, part, rates in zip(devices, used, alone, strict=True):
        compared.append(device_figures(device, part, limits.get(part.device), source))
        timed += rates.values()
    figures = figures_of(source)
    figures["file"] = name
    figures["kind"] = "prediction" if isinstance(source, Plan) else source.kind
    figures["devices"] = tuple(compared)
    figures["not_quiet"] = _not_quiet(timed or parts, probed=isinstance(source, Probe))
    figures["warnings"] = _concerning(warnings)
    return Contender(ComparedResult(**figures), source, devices, parts, alone)


def _concerning(warnings: Sequence[Warning_]) -> tuple[Warning_, ...]:
    """The warnings that concern the compared figures, each once: a plan repeats its run's."""
    concerning = {}
    for warning in warnings:
        if warning.code not in _BESIDE:
            concerning[warning.code, warning.message] = warning
    return tuple(concerning.values())


def _alone(part: UsedDevice) -> dict[int, Timed]:
    if isinstance(part, DeviceProbe):
        rates = {}
        for point in part.curve:
            rates[point.batch] = (point.throughput.median, point.step_time_s.samples)
        return rates
    if isinstance(part, OwnModel) and part.throughput and part.step_time_s:
        return {0: (part.throughput, part.step_time_s.samples)}
    return {}


def _not_quiet(timed: Sequence[Timed], *, probed: bool) -> str | None:
    """How the timings show that the machine had other work to do."""
    doubts = []
    for _, samples in timed:
        doubt = unquiet(samples)
        if doubt:
            doubts.append(doubt)
    if not doubts:
        return None
    if not probed:
        return doubts[0]
    # Among many points one may look unquiet by chance.
    if 2 * len(doubts) <= len(timed):
        return None
    return f"at {len(doubts)} of {len(timed)} batch sizes {doubts[0]}"


# What a result has for each of its devices that was used.
UsedDevice = Replica | OwnModel | Stage | DeviceProbe | Share


def used_devices(source: AnyResult) -> Sequence[UsedDevice]:
    """What a result says of each device that was used."""
    match source:
        case Run():
            return source.replicas
        case Layers():
            return source.stages
        case Independent():
            return source.measured
        case Probe():
            return source.probes
    return [share for share in source.shares if share.batch]


def figures_of(source: AnyResult) -> dict[str, Any]:
    """The figures of a result, by the names of ComparedResult's fields; a plan's are predicted."""
    if isinstance(source, Plan):
        return _predicted(source)
    figures = _shared(source, ComparedResult)
    if isinstance(source, Run | Layers):
        figures["step_time_s"] = source.step_time_s.median
    if isinstance(source, Run):
        even = source.baselines.even
        figures["even_global_batch"] = even and even.global_batch
    elif isinstance(source, Layers):
        figures["batches"] = (source.global_batch,)
        figures["micro_batches"] = (source.micro_batch,)
    elif isinstance(source, Independent) and source.throughput and source.solo_sum:
        figures["scaling_efficiency"] = source.throughput.median / source.solo_sum
    return figures


def _predicted(plan: Plan) -> dict[str, Any]:
    predicted = plan.predicted
    sync_s = None
    if plan.sync_s is not None:
        sync_s = predicted.sync_s
    return _shared(predicted, ComparedResult) | {
        "created": plan.created,
        "complete": True,
        "batches": plan.batches,
        "micro_batches": plan.micro_batches,
        "throughput": Throughput(median=predicted.throughput, ci95=None),
        "even_global_batch": predicted.even and predicted.even.split.global_batch,
        "sync_s": sync_s,
    }


def device_figures(
    device: Device, used: UsedDevice, limit: int | None, source: AnyResult
) -> ComparedDevice:
    """The figures of a device; `limit` is what a plan allowed it."""
    figures = _shared(used, ComparedDevice)
    match used:
        case Replica():
            figures["limit"] = limit
        case Stage():
            figures["compute_s"] = used.forward_s + used.backward_s
            figures["wait_s"] = used.bubble_s + used.transfer_s
        case Share() if isinstance(source, Plan):
            figures["throughput"] = used.batch / source.predicted.step_time_s
        case DeviceProbe():
            if used.step_time_model:
                figures["alpha_s"] = used.step_time_model.alpha_s
                figures["beta_s"] = used.step_time_model.beta_s
            if used.batch_limit:
                figures["limit"] = used.batch_limit.fits
    figures["label"] = device.label
    figures["name"] = clean(device.name)
    figures["uuid"] = clean(device.uuid)
    return ComparedDevice(**figures)


def _shared(source: Record, target: type[Record]) -> dict[str, Any]:
    """The values of the fields that both records have, which share names on purpose."""
    names = type(source).model_fields.keys() & target.model_fields.keys()
    return {name: getattr(source, name) for name in names}
