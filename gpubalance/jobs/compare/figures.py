"""The figures that a comparison shows of a result and of each of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubalance.results.common import Throughput
from gpubalance.results.comparison import ComparedDevice, ComparedResult
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers, Stage
from gpubalance.results.plan import Plan, Share
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.records import AnyResult
from gpubalance.results.run import Replica, Run
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.text import clean

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
