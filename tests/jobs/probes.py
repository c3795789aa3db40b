"""Probes and measurements computed from profiles, without the minutes of measuring."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.events import Event
from gpubalance.jobs.probe.probed_device import fitted
from gpubalance.planning.curve import octaves
from gpubalance.results.common import Model, StepTime, Throughput
from gpubalance.results.plan import Plan
from gpubalance.results.probe import (
    BatchLimit,
    CurvePoint,
    DeviceProbe,
    Probe,
    SoloRate,
    StepTimeModel,
)
from gpubalance.results.run import Measurement, Replica, Run
from gpubalance.settings.device import Device, DeviceProfile, JointProfile
from gpubalance.settings.record import Record
from gpubalance.settings.settings import Settings
from tests.support.altered import altered
from tests.support.known import known

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = Settings(model="small")
MIB = 1 << 20
QUICK = DeviceProfile(
    name="quick",
    alpha_s=0.010,
    beta_s=0.0002,
    memory=512 * MIB,
    base_memory=64 * MIB,
    memory_per_sample=4 * MIB,
)


def probe_of(
    devices: Sequence[Device],
    *,
    wrong: Sequence[float] = (),
    multiple: int = 8,
    gradient_bytes: int = 2592,
) -> Probe:
    """The probe of simulated devices; `wrong` has factors by which it takes them for slower."""
    factors = [*wrong, *[1.0] * len(devices)]
    probes = []
    for number, device in enumerate(devices):
        if device.profile:
            part = factors[number]
            probes.append(_device_probe(number, device.profile, part, multiple))
    return Probe(
        created="2026-11-21T00:00:00+00:00",
        settings=SMALL,
        environment=None,
        model=Model(name="small", parameters=648, gradient_bytes=gradient_bytes),
        devices=tuple(devices),
        batch_multiple=multiple,
        margin_bytes=0,
        max_batch=None,
        parallel=False,
        probes=tuple(probes),
        complete=True,
        warnings=(),
    )


R = TypeVar("R", bound=Record)


def inside(record: R, field: str, **changes: object) -> R:
    """The record with changes in one of its fields, which it has."""
    changed = altered(known(getattr(record, field)), **changes)
    return record.model_copy(update={field: changed})


def with_second(probe: Probe, fits: int | None, fails: int, **changes: object) -> Probe:
    """The probe of a pair with another limit of the second device, and other changes.

    The second device has no step-time model.
    """
    first, second = probe.probes
    limited = inside(second, "batch_limit", fits=fits, fails=fails)
    second = altered(limited, step_time_model=None, **changes)
    return altered(probe, probes=(first, second))


def holding_nothing(probe: Probe) -> Probe:
    """The probe of a pair whose second device does not hold a single sample."""
    nothing: Any = {"curve": (), "solo_best": None, "sensible": None}
    return with_second(probe, None, 1, complete=False, **nothing)


def proof_of(plan: Plan) -> Run:
    """The run that proves a balance's split."""
    return known(known(plan.balance).run)


def of_config(name: str) -> tuple[tuple[Device, ...], JointProfile]:
    """The devices of a profile that ships, and how they are together."""
    return simulated_devices(str(CONFIGS / f"{name}.toml"))


def devices_of(*profiles: DeviceProfile) -> tuple[Device, ...]:
    """A simulated device of each profile."""
    (base,) = simulated_devices("1")[0]
    devices = []
    for index, profile in enumerate(profiles):
        named = altered(base, index=index, uuid=f"SIM-{index}", name=profile.name)
        devices.append(altered(named, memory_bytes=profile.memory, profile=profile))
    return tuple(devices)


def held_by(profile: DeviceProfile) -> int:
    """How many samples a device has memory for."""
    return (known(profile.memory) - profile.base_memory) // profile.memory_per_sample


def with_memory(device: Device, samples: int, extra: int = 0) -> Device:
    """The device with memory for that many samples, and some bytes more."""
    profile = known(device.profile)
    memory = profile.memory_at(samples, extra)
    return altered(device, memory_bytes=memory, profile=altered(profile, memory=memory))


def _device_probe(
    number: int, profile: DeviceProfile, factor: float, multiple: int
) -> DeviceProbe:
    fits = held_by(profile) // multiple * multiple
    update_s = profile.update_s
    sizes = [multiple, fits // 2, fits]
    if profile.curve:
        sizes = octaves(multiple, fits, multiple)
    times = [(size, factor * profile.compute_s(size) + update_s) for size in sizes]
    if profile.curve:
        model = fitted([(batch, time_s, 0.0) for batch, time_s in times])
    else:
        alpha_s, beta_s = factor * profile.alpha_s + update_s, factor * profile.beta_s
        line: Any = {"planned_with": "line", "curve": None}
        model = StepTimeModel(alpha_s=alpha_s, beta_s=beta_s, residual=0.0, **line)
    curve = tuple(point_of(profile, *point) for point in times)
    best = SoloRate(batch=fits, throughput=fits / times[-1][1])
    return DeviceProbe(
        device=number,
        curve=curve,
        batch_limit=BatchLimit(
            fits=fits,
            fails=fits + multiple,
            max_batch=fits + multiple,
            memory_bytes=profile.memory,
            needed_bytes=None,
            trials=(),
        ),
        step_time_model=model,
        update_s=profile.update_s,
        solo_best=best,
        sensible=best,
        steady=True,
        measured_s=1.0,
        elapsed_s=1.0,
        children=1,
        failures=(),
        complete=True,
    )


def point_of(profile: DeviceProfile, batch: int, seconds: float) -> CurvePoint:
    """A point of a curve: a batch that takes so many seconds."""
    return CurvePoint(
        batch=batch,
        step_time_s=step_times(seconds),
        throughput=Throughput(median=batch / seconds, ci95=None),
        memory_peak_bytes=profile.memory_at(batch),
        precise=True,
        steady=True,
    )


def exact_point(batch: int, seconds: float, **more: object) -> CurvePoint:
    """A point whose time is known within ± 0.1 %, with other changes."""
    point = altered(point_of(QUICK, batch, seconds), **more)
    return inside(point, "step_time_s", ci95=(0.999 * seconds, 1.001 * seconds))


def step_times(
    *samples: float, steps: int = 1, at_s: tuple[float, ...] = ()
) -> StepTime:
    """Times whose timings, of so many steps, end one after another, or when it says."""
    ends_s = at_s or tuple(accumulate(steps * sample for sample in samples))
    how: Any = {"mad": 0.0, "ci95": None, "steps_per_sample": steps}
    return StepTime(median=samples[0], samples=samples, at_s=ends_s, **how)


def measurement_of(
    batches: Sequence[int],
    computes_s: Sequence[float],
    sync_s: float = 0.0,
    update_s: float = 0.0,
) -> Measurement:
    """The measurement of a split with these compute times, sync and update."""
    longest = max(computes_s)
    step_s = longest + update_s + sync_s
    return Measurement(
        batches=tuple(batches),
        micro_batches=tuple(batches),
        global_batch=sum(batches),
        step_time_s=step_times(step_s),
        throughput=Throughput(median=sum(batches) / step_s, ci95=None),
        replicas=tuple(
            Replica(
                device=i,
                batch=b,
                micro_batch=b,
                throughput=b / step_s,
                compute_s=c,
                update_s=update_s,
                wait_s=longest - c,
                utilisation=c / step_s,
                memory_peak_bytes=None,
            )
            for i, (b, c) in enumerate(zip(batches, computes_s, strict=True))
        ),
        sync_s=sync_s,
        input_wait_s=0.0,
        slow_s=0.0,
        excess_s=0.0,
        imbalance=longest * len(computes_s) / sum(computes_s),
    )


def done(events: Sequence[Event], kind: type[Record]) -> list[Any]:
    """The events of that kind of record."""
    return [one for one in events if isinstance(getattr(one, "record", None), kind)]
