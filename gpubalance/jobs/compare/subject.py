"""A result to compare: the figures shown side by side, and the step times that a ratio is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.numbers.steady import unquiet
from gpubalance.results.common import StepTime, Throughput, Warning_
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
_BESIDE = ("even-split-does-not-fit", "even-split-out-of-memory", "stamps-cost", "margin-unknown")

# What a result has for each of its devices that was used.
Part = Replica | OwnModel | Stage | DeviceProbe | Share
# Samples/s, and the step times that they are from, in order.
Timed = tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Subject:
    """`source` is what the file holds, or the run of a plan that was run; `devices` are those of `result.devices`."""

    result: ComparedResult
    source: AnyResult
    devices: tuple[Device, ...]

    @property
    def parts(self) -> list[Timed]:
        """What adds up to the result's throughput, and when; without timings if nothing ran."""
        if isinstance(self.source, Run | Layers):
            return [(self.source.throughput.median, self.source.step_time_s.samples)]
        return [self.timed(place).get(0, (0.0, ())) for place in range(len(self.devices))]

    def timed(self, place: int) -> dict[int, Timed]:
        """What a device gave by itself: by batch if it was probed, under 0 if it trained a model of its own."""
        found = self.source
        if isinstance(found, Probe):
            points = found.probes[place].curve
            return {point.batch: (point.throughput.median, point.step_time_s.samples) for point in points}
        one = found.measured[place] if isinstance(found, Independent) else None
        return {0: (one.throughput, one.step_time_s.samples)} if one and one.throughput and one.step_time_s else {}


def read_subject(path: Path) -> Subject:
    """Reads a result. The BadInput for any other file says what it is instead, or which field is damaged."""
    found, name = read_result(path), clean(str(path), 500)
    plan = found if isinstance(found, Plan) else None
    source = (plan and plan.run) or found
    if isinstance(source, Independent) and source.throughput is None:
        raise BadInput(
            f"{name}: nothing was measured at once before it was interrupted",
            remedy="measure it to the end: gpubalance independent … -o FILE --resume",
        )
    parts, figures = _used(source)
    used = [(source.devices[part.device], part) for part in parts]
    limits = {share.device: share.limit for share in plan.shares} if plan else {}
    given = (*source.warnings, *(plan.warnings if plan and source is not plan else ()))
    result = ComparedResult(
        **_shared(source.predicted if isinstance(source, Plan) else source, ComparedResult)
        | figures
        | {
            "file": name,
            "kind": "prediction" if isinstance(source, Plan) else source.kind,
            "devices": tuple(_device(device, part, limits.get(part.device), source) for device, part in used),
            "not_quiet": _not_quiet(source),
            "warnings": tuple(_warnings(given, used)),
        }
    )
    return Subject(result, source, tuple(device for device, _ in used))


def _used(source: AnyResult) -> tuple[Sequence[Part], dict[str, Any]]:
    """The parts of the devices that were used, and the figures that have other names or places in a comparison."""
    match source:
        case Run():
            even = source.baselines.even
            batch = even and even.global_batch
            return source.replicas, {"step_time_s": source.step_time_s.median, "even_global_batch": batch}
        case Layers():
            batches = {"batches": (source.global_batch,), "micro_batches": (source.micro_batch,)}
            return source.stages, {"step_time_s": source.step_time_s.median, **batches}
        case Independent():
            rate = source.throughput.median if source.throughput else 0.0
            return source.measured, {"scaling_efficiency": rate / source.solo_sum if source.solo_sum else None}
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
    more: dict[str, Any] = {"label": device.label, "name": clean(device.name), "uuid": clean(device.uuid)}
    match part:
        case Replica():
            more["limit"] = limit
        case Stage():
            more |= {"compute_s": part.forward_s + part.backward_s, "wait_s": part.bubble_s + part.transfer_s}
        case Share() if isinstance(source, Plan):
            more["throughput"] = part.batch / source.predicted.step_time_s
        case DeviceProbe():
            model = part.step_time_model
            more |= {"alpha_s": model and model.alpha_s, "beta_s": model and model.beta_s}
            more["limit"] = part.batch_limit and part.batch_limit.fits
    return ComparedDevice(**_shared(part, ComparedDevice) | more)


def _shared(source: Record, target: type[Record]) -> dict[str, Any]:
    """The values of the fields that both records have, which share names on purpose."""
    return {name: getattr(source, name) for name in type(source).model_fields if name in target.model_fields}


def _not_quiet(source: AnyResult) -> str | None:
    """How the timings show that the machine had other work to do."""
    if isinstance(source, Probe):
        said = [unquiet(point.step_time_s.samples) for one in source.probes for point in one.curve]
        doubts = [doubt for doubt in said if doubt]
        # Among many points one may look unquiet by chance.
        most = 2 * len(doubts) > len(said)
        return f"at {len(doubts)} of {len(said)} batch sizes {doubts[0]}" if most else None
    timed: list[StepTime | None] = []
    if isinstance(source, Run | Layers):
        timed = [source.step_time_s]
    elif isinstance(source, Independent):
        timed = [one.step_time_s for one in source.measured]
    return next(filter(None, (unquiet(one.samples) for one in timed if one)), None)


def _warnings(given: Iterable[Warning_], used: Iterable[tuple[Device, Part]]) -> list[Warning_]:
    """The warnings about the figures, each once, and why the GPUs lowered their clocks during the measurement."""
    found = [*{(one.code, one.message): one for one in given if one.code not in _BESIDE}.values()]
    reasons: dict[str, set[str]] = {}
    for device, part in used:
        watched = part.curve if isinstance(part, DeviceProbe) else () if isinstance(part, Share) else (part,)
        told = {reason for one in watched if one.telemetry for reason in one.telemetry.throttle_reasons or ()}
        reasons |= {device.label: told} if told else {}
    if reasons and all(one.code != "throttled" for one in found):
        where = "; ".join(f"{label}: {', '.join(sorted(told))}" for label, told in reasons.items())
        message = f"clocks were lowered: {where}"
        found.append(Warning_(code="throttled", message=message, next="look at temperature and power limit"))
    return found
