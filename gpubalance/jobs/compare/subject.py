"""A result to compare: what of it stands side by side, and what the ratio is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.results.common import Environment, Model, Throughput, Warning_
from gpubalance.results.comparison import ComparedDevice, ComparedResult
from gpubalance.results.plan import Plan, Share
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.results.records import read_result
from gpubalance.results.run import Run
from gpubalance.results.telemetry import Telemetry
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.text import clean

# These say nothing of the figures that are compared: they are of the even split, or of what there was no margin for.
_BESIDE = ("even-split-does-not-fit", "even-split-out-of-memory", "stamps-cost", "margin-unknown")
_LEAST, _MOST = 1e-12, 1e12  # of a time or a rate: what lies beyond was never measured


@dataclass(frozen=True)
class Subject:
    """`devices` are those in use, each as in `result.devices`; `source` what the file holds, of a plan its run."""

    result: ComparedResult
    source: Run | Probe | Plan
    devices: tuple[Device, ...]

    @property
    def settings(self) -> Settings:
        return self.source.settings

    @property
    def model(self) -> Model | None:
        return self.source.model

    @property
    def environment(self) -> Environment | None:
        """None where it is not known. Of a prediction it is the probe's."""
        return self.source.environment

    @property
    def times_s(self) -> tuple[float, ...]:
        """The run's step times, in order of time; none of what was not run."""
        return self.source.step_time_s.samples if isinstance(self.source, Run) else ()


def read_subject(path: Path) -> Subject:
    """What a file holds. Raises BadInput with what the file is instead, or what in it can't be."""
    found = read_result(path)
    name = clean(str(path), 500)
    try:
        if isinstance(found, Probe):
            return _of_probe(name, found)
        if isinstance(found, Run):
            return _of_run(name, found)
        run = found.balance.run if found.balance is not None else None
        return _of_prediction(name, found) if run is None else _of_run(name, run, found)
    except _Impossible as error:
        raise BadInput(f"{name} is damaged: {error}", remedy=f"make the {found.kind} again") from None


class _Impossible(Exception):
    """A record whose fields contradict each other, or that no measurement gives."""


def _of_run(name: str, run: Run, plan: Plan | None = None) -> Subject:
    _check("step_time_s", [run.step_time_s.median, *run.step_time_s.samples])
    _check("throughput", [run.throughput.median])
    used = [_device(run.devices, replica.device, "replicas") for replica in run.replicas]
    limits = {share.device: share.limit for share in plan.shares} if plan else {}
    devices = tuple(
        ComparedDevice(
            **_named(device),
            batch=replica.batch,
            micro_batch=replica.micro_batch,
            throughput=replica.throughput,
            compute_s=replica.compute_s,
            wait_s=replica.wait_s,
            memory_peak_bytes=replica.memory_peak_bytes,
            limit=limits.get(replica.device),
        )
        for device, replica in zip(used, run.replicas, strict=True)
    )
    result = ComparedResult(
        file=name,
        kind="run",
        created=run.created,
        complete=run.complete,
        batches=run.batches,
        micro_batches=run.micro_batches,
        throughput=run.throughput,
        step_time_s=run.step_time_s.median,
        sync_s=run.sync_s,
        imbalance=run.imbalance,
        speedup_over_even=run.speedup_over_even,
        scaling_efficiency=run.scaling_efficiency,
        devices=devices,
        warnings=_warnings(
            [*run.warnings, *(plan.warnings if plan else ())],
            [(device, replica.telemetry) for device, replica in zip(used, run.replicas, strict=True)],
        ),
    )
    return Subject(result, run, tuple(used))


def _of_prediction(name: str, plan: Plan) -> Subject:
    predicted = plan.predicted
    _check("predicted", [predicted.step_time_s, predicted.throughput])
    shares = [share for share in plan.shares if share.batch]
    used = [_device(plan.devices, share.device, "shares") for share in shares]
    result = ComparedResult(
        file=name,
        kind="prediction",
        created=plan.created,
        complete=True,
        batches=plan.batches,
        micro_batches=plan.micro_batches,
        throughput=Throughput(median=predicted.throughput, ci95=None),
        step_time_s=predicted.step_time_s,
        sync_s=predicted.sync_s if plan.sync_s is not None else None,
        imbalance=predicted.imbalance,
        speedup_over_even=predicted.speedup_over_even,
        scaling_efficiency=predicted.scaling_efficiency,
        devices=tuple(_predicted(device, share, plan) for device, share in zip(used, shares, strict=True)),
        warnings=_warnings(plan.warnings, []),
    )
    return Subject(result, plan, tuple(used))


def _predicted(device: Device, share: Share, plan: Plan) -> ComparedDevice:
    return ComparedDevice(
        **_named(device),
        batch=share.batch,
        micro_batch=share.micro_batch,
        throughput=share.batch / plan.predicted.step_time_s,
        compute_s=share.compute_s,
        limit=share.limit,
    )


def _of_probe(name: str, probe: Probe) -> Subject:
    for one in probe.probes:
        for point in one.curve:
            _check("step_time_s", [point.step_time_s.median, *point.step_time_s.samples])
            _check("throughput", [point.throughput.median])
    used = [_device(probe.devices, one.device, "probes") for one in probe.probes]
    devices = []
    for device, one in zip(used, probe.probes, strict=True):
        model = one.step_time_model
        devices.append(
            ComparedDevice(
                **_named(device),
                limit=one.batch_limit and one.batch_limit.fits,
                alpha_s=model and model.alpha_s,
                beta_s=model and model.beta_s,
                solo_best=one.solo_best,
            )
        )
    throttled = [
        (device, point.telemetry)
        for device, one in zip(used, probe.probes, strict=True)
        for point in one.curve
        if point.telemetry
    ]
    result = ComparedResult(
        file=name,
        kind="probe",
        created=probe.created,
        complete=probe.complete,
        devices=tuple(devices),
        warnings=_warnings(probe.warnings, throttled),
    )
    return Subject(result, probe, tuple(used))


def curve_of(subject: Subject, number: int) -> dict[int, CurvePoint]:
    """The curve of a device, by its number in the result; none where the result is no probe."""
    if not isinstance(subject.source, Probe):
        return {}
    return {point.batch: point for point in subject.source.probes[number].curve}


def _named(device: Device) -> dict[str, str]:
    return {"label": device.label, "name": clean(device.name), "uuid": clean(device.uuid)}


def _check(where: str, numbers: Iterable[float]) -> None:
    for number in numbers:
        if not _LEAST < number < _MOST:
            raise _Impossible(f"{where} has {number:g}")


def _device(devices: tuple[Device, ...], number: int, where: str) -> Device:
    if not 0 <= number < len(devices):
        raise _Impossible(f"{where} names device {number} of {len(devices)}")
    return devices[number]


def _warnings(given: Iterable[Warning_], readings: Iterable[tuple[Device, Telemetry | None]]) -> tuple[Warning_, ...]:
    """Those of the figures themselves, each once, and what the GPUs said while they were measured."""
    found = {(w.code, w.message): _clean(w) for w in given if w.code not in _BESIDE}
    told = {w.code for w in found.values()}
    reasons: dict[str, set[str]] = {}
    for device, telemetry in readings:
        if telemetry is not None and telemetry.throttle_reasons:
            reasons.setdefault(device.label, set()).update(telemetry.throttle_reasons)
    if reasons and "throttled" not in told:
        where = "; ".join(f"{label}: {', '.join(sorted(why))}" for label, why in reasons.items())
        found["throttled", ""] = Warning_(
            code="throttled", message=f"clocks were lowered: {where}", next="look at temperature and power limit"
        )
    return tuple(found.values())


def _clean(warning: Warning_) -> Warning_:
    return Warning_(code=clean(warning.code), message=clean(warning.message, 1000), next=clean(warning.next, 1000))
