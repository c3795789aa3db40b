"""A result to compare: the figures shown side by side, and the step times that a ratio is computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubalance.errors import BadInput
from gpubalance.numbers.steady import unquiet
from gpubalance.results.common import Throughput, Warning_
from gpubalance.results.comparison import ComparedDevice, ComparedResult
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.results.records import AnyResult, read_result
from gpubalance.results.run import Run
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.text import clean

# Warnings that do not concern the compared figures.
_BESIDE = ("even-split-does-not-fit", "even-split-out-of-memory", "stamps-cost", "margin-unknown")


@dataclass(frozen=True)
class Subject:
    """`source` is what the file holds, or the run of a plan that was run; `devices` are those of `result.devices`."""

    result: ComparedResult
    source: AnyResult
    devices: tuple[Device, ...]

    @property
    def parts(self) -> list[tuple[float, tuple[float, ...]]]:
        """The throughputs that add up to the result's, each with its step times in order; empty if nothing ran."""
        if isinstance(self.source, Run | Layers):
            return [(self.source.throughput.median, self.source.step_time_s.samples)]
        return [self.part(place) or (0.0, ()) for place in range(len(self.devices))]

    def part(self, number: int) -> tuple[float, tuple[float, ...]] | None:
        """The part of a device that trained a model of its own, else None. `number` is its place in `devices`."""
        one = self.source.measured[number] if isinstance(self.source, Independent) else None
        return (one.throughput, one.step_time_s.samples) if one and one.throughput and one.step_time_s else None

    def curve(self, number: int) -> dict[int, CurvePoint]:
        """A probed device's points by batch; empty unless the result is a probe. `number` is its place in `devices`."""
        if not isinstance(self.source, Probe):
            return {}
        return {point.batch: point for point in self.source.probes[number].curve}


def read_subject(path: Path) -> Subject:
    """Reads a result. The BadInput for any other file says what it is instead, or which field is damaged."""
    found, name = read_result(path), clean(str(path), 500)
    if isinstance(found, Probe):
        return _of_probe(name, found)
    if isinstance(found, Run):
        return _of_run(name, found)
    if isinstance(found, Independent):
        return _of_independent(name, found)
    if isinstance(found, Layers):
        return _of_layers(name, found)
    run = found.balance.run if found.balance is not None else None
    return _of_prediction(name, found) if run is None else _of_run(name, run, found)


def _of_run(name: str, run: Run, plan: Plan | None = None) -> Subject:
    used = [(run.devices[replica.device], replica) for replica in run.replicas]
    limits = {share.device: share.limit for share in plan.shares} if plan else {}
    warnings = [*run.warnings, *(plan.warnings if plan else ())]
    result = _result(
        run,
        file=name,
        kind="run",
        even_global_batch=run.baselines.even and run.baselines.even.global_batch,
        step_time_s=run.step_time_s.median,
        devices=tuple(_device(device, replica, limit=limits.get(replica.device)) for device, replica in used),
        not_quiet=unquiet(run.step_time_s.samples),
        warnings=_warnings(warnings, [(device, replica.telemetry) for device, replica in used]),
    )
    return Subject(result, run, tuple(device for device, _ in used))


def _of_independent(name: str, found: Independent) -> Subject:
    if found.throughput is None:
        raise BadInput(
            f"{name}: nothing was measured at once before it was interrupted",
            remedy="measure it to the end: gpubalance independent … -o FILE --resume",
        )
    used = [(found.devices[one.device], one) for one in found.measured]
    doubts = [doubt for _, one in used if (doubt := _unquiet(one))]
    result = _result(
        found,
        file=name,
        kind="independent",
        scaling_efficiency=found.throughput.median / found.solo_sum if found.solo_sum else None,
        devices=tuple(_device(device, one) for device, one in used),
        not_quiet=doubts[0] if doubts else None,
        warnings=_warnings(found.warnings, [(device, one.telemetry) for device, one in used]),
    )
    return Subject(result, found, tuple(device for device, _ in used))


def _of_layers(name: str, found: Layers) -> Subject:
    used = [(found.devices[stage.device], stage) for stage in found.stages]
    result = _result(
        found,
        file=name,
        kind="layers",
        batches=(found.global_batch,),
        micro_batches=(found.micro_batch,),
        step_time_s=found.step_time_s.median,
        devices=tuple(
            _device(device, one, compute_s=one.forward_s + one.backward_s, wait_s=one.bubble_s + one.transfer_s)
            for device, one in used
        ),
        not_quiet=unquiet(found.step_time_s.samples),
        warnings=_warnings(found.warnings, [(device, stage.telemetry) for device, stage in used]),
    )
    return Subject(result, found, tuple(device for device, _ in used))


def _unquiet(one: OwnModel) -> str | None:
    return unquiet(one.step_time_s.samples) if one.step_time_s else None


def _of_prediction(name: str, plan: Plan) -> Subject:
    predicted = plan.predicted
    used = [(plan.devices[share.device], share) for share in plan.shares if share.batch]
    result = _result(
        predicted,
        file=name,
        kind="prediction",
        created=plan.created,
        complete=True,
        batches=plan.batches,
        micro_batches=plan.micro_batches,
        throughput=Throughput(median=predicted.throughput, ci95=None),
        even_global_batch=predicted.even and predicted.even.split.global_batch,
        sync_s=predicted.sync_s if plan.sync_s is not None else None,
        devices=tuple(_device(device, share, throughput=share.batch / predicted.step_time_s) for device, share in used),
        warnings=_warnings(plan.warnings, []),
    )
    return Subject(result, plan, tuple(device for device, _ in used))


def _of_probe(name: str, probe: Probe) -> Subject:
    used = [(probe.devices[one.device], one) for one in probe.probes]
    said = [unquiet(point.step_time_s.samples) for one in probe.probes for point in one.curve]
    doubts = [doubt for doubt in said if doubt]
    result = _result(
        probe,
        file=name,
        kind="probe",
        devices=tuple(
            _device(
                device,
                one,
                limit=one.batch_limit and one.batch_limit.fits,
                alpha_s=one.step_time_model and one.step_time_model.alpha_s,
                beta_s=one.step_time_model and one.step_time_model.beta_s,
            )
            for device, one in used
        ),
        # Among many points one may look unquiet by chance.
        not_quiet=f"at {len(doubts)} of {len(said)} batch sizes {doubts[0]}" if 2 * len(doubts) > len(said) else None,
        warnings=_warnings(probe.warnings, [(d, point.telemetry) for d, one in used for point in one.curve]),
    )
    return Subject(result, probe, tuple(device for device, _ in used))


def _result(source: Record, **more: Any) -> ComparedResult:
    return ComparedResult(**_shared(source, ComparedResult) | more)


def _device(device: Device, source: Record, **more: Any) -> ComparedDevice:
    named = {"label": device.label, "name": clean(device.name), "uuid": clean(device.uuid)}
    return ComparedDevice(**_shared(source, ComparedDevice) | named | more)


def _shared(source: Record, target: type[Record]) -> dict[str, Any]:
    """The values of the fields that both records have, which share names on purpose."""
    return {name: getattr(source, name) for name in type(source).model_fields if name in target.model_fields}


def _warnings(given: Iterable[Warning_], readings: Iterable[tuple[Device, Telemetry | None]]) -> tuple[Warning_, ...]:
    """The warnings about the figures, each once, and why the GPUs lowered their clocks during the measurement."""
    found = {
        (w.code, w.message): Warning_(code=clean(w.code), message=clean(w.message, 1000), next=clean(w.next, 1000))
        for w in given
        if w.code not in _BESIDE
    }
    reasons = defaultdict[str, set[str]](set)
    for device, telemetry in readings:
        if telemetry is not None and telemetry.throttle_reasons:
            reasons[device.label].update(telemetry.throttle_reasons)
    if reasons and all(warning.code != "throttled" for warning in found.values()):
        where = "; ".join(f"{label}: {', '.join(sorted(why))}" for label, why in reasons.items())
        found["throttled", ""] = Warning_(
            code="throttled", message=f"clocks were lowered: {where}", next="look at temperature and power limit"
        )
    return tuple(found.values())
