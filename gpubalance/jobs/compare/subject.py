"""A result to compare: the figures shown side by side, and the step times that a ratio is computed
from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.numbers.steady import unquiet
from gpubalance.results.common import Throughput
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

# What a result has for each of its devices that was used.
Part = Replica | OwnModel | Stage | DeviceProbe | Share
# Samples/s, and the step times that they are from, in order.
Timed = tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Contender:
    """`source` is what the file holds, or the run of a plan that was run; `devices` are those of
    `result.devices`.

    `parts` add up to the result's throughput, and are without step times if nothing ran. `alone`
    has what each device gave by itself: by batch if it was probed, under 0 if it trained a model of
    its own.
    """

    result: ComparedResult
    source: AnyResult
    devices: tuple[Device, ...]
    parts: list[Timed]
    alone: list[dict[int, Timed]]


def read_subject(path: Path) -> Contender:
    """Reads a result. The BadInput for any other file says what it is instead, or which field is
    damaged.
    """
    found, name = read_result(path), clean(str(path), 500)
    plan = found if isinstance(found, Plan) else None
    source = (plan and plan.run) or found
    if isinstance(source, Independent) and source.throughput is None:
        raise BadInput(
            f"{name}: nothing was measured at once before it was interrupted",
            remedy="measure it to the end: gpubalance independent … -o FILE --resume",
        )
    used, figures = _used(source)
    alone = [_alone(one) for one in used]
    parts = [one.get(0, (0.0, ())) for one in alone]
    if isinstance(source, Run | Layers):
        parts = [(source.throughput.median, source.step_time_s.samples)]
    devices = [source.devices[one.device] for one in used]
    limits = {share.device: share.limit for share in plan.shares} if plan else {}
    each, timed = (
        zip(devices, used, strict=True),
        [timed for one in alone for timed in one.values()],
    )
    given = (*source.warnings, *(plan.warnings if plan and source is not plan else ()))
    result = ComparedResult(
        **_shared(source.predicted if isinstance(source, Plan) else source, ComparedResult)
        | figures
        | {
            "file": name,
            "kind": "prediction" if isinstance(source, Plan) else source.kind,
            "devices": tuple(
                _device(device, one, limits.get(one.device), source) for device, one in each
            ),
            "not_quiet": _not_quiet(timed or parts, probed=isinstance(source, Probe)),
            "warnings": tuple(
                {(one.code, one.message): one for one in given if one.code not in _BESIDE}.values()
            ),
        }
    )
    return Contender(result, source, tuple(devices), parts, alone)


def _alone(one: Part) -> dict[int, Timed]:
    if isinstance(one, DeviceProbe):
        return {
            point.batch: (point.throughput.median, point.step_time_s.samples) for point in one.curve
        }
    if isinstance(one, OwnModel) and one.throughput and one.step_time_s:
        return {0: (one.throughput, one.step_time_s.samples)}
    return {}


def _not_quiet(timed: Sequence[Timed], *, probed: bool) -> str | None:
    """How the timings show that the machine had other work to do."""
    doubts = [doubt for _, samples in timed if (doubt := unquiet(samples))]
    if not probed:
        return next(iter(doubts), None)
    # Among many points one may look unquiet by chance.
    most = 2 * len(doubts) > len(timed)
    return f"at {len(doubts)} of {len(timed)} batch sizes {doubts[0]}" if most else None


def _used(source: AnyResult) -> tuple[Sequence[Part], dict[str, Any]]:
    """The parts of the devices that were used, and the figures that have other names or places in a
    comparison.
    """
    match source:
        case Run():
            even = source.baselines.even
            batch = even and even.global_batch
            return source.replicas, {
                "step_time_s": source.step_time_s.median,
                "even_global_batch": batch,
            }
        case Layers():
            batches = {"batches": (source.global_batch,), "micro_batches": (source.micro_batch,)}
            return source.stages, {"step_time_s": source.step_time_s.median, **batches}
        case Independent():
            rate = source.throughput.median if source.throughput else 0.0
            return source.measured, {
                "scaling_efficiency": rate / source.solo_sum if source.solo_sum else None
            }
        case Probe():
            return source.probes, {}
    predicted = source.predicted
    return [share for share in source.shares if share.batch], {
        "created": source.created,
        "complete": True,
        "batches": source.batches,
        "micro_batches": source.micro_batches,
        "throughput": Throughput(median=predicted.throughput, ci95=None),
        "even_global_batch": predicted.even and predicted.even.split.global_batch,
        "sync_s": predicted.sync_s if source.sync_s is not None else None,
    }


def _device(device: Device, part: Part, limit: int | None, source: AnyResult) -> ComparedDevice:
    more: dict[str, Any] = {
        "label": device.label,
        "name": clean(device.name),
        "uuid": clean(device.uuid),
    }
    match part:
        case Replica():
            more["limit"] = limit
        case Stage():
            more |= {
                "compute_s": part.forward_s + part.backward_s,
                "wait_s": part.bubble_s + part.transfer_s,
            }
        case Share() if isinstance(source, Plan):
            more["throughput"] = part.batch / source.predicted.step_time_s
        case DeviceProbe():
            model = part.step_time_model
            more |= {"alpha_s": model and model.alpha_s, "beta_s": model and model.beta_s}
            more["limit"] = part.batch_limit and part.batch_limit.fits
    return ComparedDevice(**_shared(part, ComparedDevice) | more)


def _shared(source: Record, target: type[Record]) -> dict[str, Any]:
    """The values of the fields that both records have, which share names on purpose."""
    return {
        name: getattr(source, name)
        for name in type(source).model_fields
        if name in target.model_fields
    }
