"""Checks that use the devices: TensorFlow's list of them, a training step, copies, an all-reduce."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations

from gpubalance.devices.health import read_peer_to_peer
from gpubalance.errors import DeadlinePassed, GpubalanceError
from gpubalance.jobs.doctor.topic import check, explained, failed, ok, skipped
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_bytes, format_seconds
from gpubalance.remedies import known, match
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import within_or
from gpubalance.workers.messages import Surveyed
from gpubalance.workers.party import Build, Party
from gpubalance.workers.worker import LOADS_WITHIN_S

BATCH = 8
_STEP_WITHIN_S = 300.0  # the first one: tracing, and cuDNN's search for algorithms
_COPIED_BYTES = 64 << 20
_COPIED_BYTES_SIMULATED = 1 << 20  # they share one memory: a larger copy tells nothing more
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def tensorflow_devices(found: Surveyed, devices: Sequence[Device]) -> list[Check]:
    """The checks of TensorFlow's list of GPUs against NVML's, and of memory growth."""
    checks = []
    for why in dict.fromkeys(found.missing.values()):
        lacking = [f"{device.label} ({device.name})" for device in devices if found.missing.get(device.uuid) == why]
        row = match(why) or known("left-out")
        checks.append(check("tensorflow-devices", "failure", f"{', '.join(lacking)}: {why}", row.remedy))
    has = [device.label for device in devices if device.uuid not in found.missing]
    if has:
        checks.append(ok("tensorflow-devices", f"it has {', '.join(has)}, like NVML"))
        checks.append(memory_growth(found.memory_growth, os.environ.get(_GROWTH)))
    return checks


def memory_growth(on: bool | None, wished: str | None) -> Check:
    """The check of memory growth, `on` in a worker; `wished` is the user's variable, which overrules a script."""
    if (wished or "").lower() in ("false", "0"):
        detail = f"{_GROWTH}={wished}: a script takes all memory of every GPU at once, and no other finds any"
        return check("memory-growth", "warning", detail, f"unset {_GROWTH}")
    if on is False:
        detail = "off: TensorFlow takes all memory of every GPU at once"
        return check("memory-growth", "warning", detail, f"export {_GROWTH}=true")
    return ok("memory-growth", "on here, and wherever split.scope() is entered")


def training_steps(
    devices: Sequence[Device], joint: JointProfile, settings: Settings, watch: Watch
) -> tuple[list[Check], int | None]:
    """The checks of one training step on every device, and the bytes of the model's gradients, None without a step.

    All devices train in one process. If that fails each is tried alone, to find the faulty one.
    """
    alone = [(device,) for device in devices]
    if any(device.uuid.startswith("MIG-") for device in devices):  # CUDA shows a process one MIG slice only
        return _steps(alone, joint, settings, watch)
    checks, size = _steps([tuple(devices)], joint, settings, watch)
    if len(devices) > 1 and any(check.status == "failure" for check in checks):
        found, size_alone = _steps(alone, JointProfile(), settings, watch)
        return [check for check in found if check.status == "failure"] or checks, size or size_alone
    return checks, size


def _steps(
    groups: Sequence[tuple[Device, ...]], joint: JointProfile, settings: Settings, watch: Watch
) -> tuple[list[Check], int | None]:
    checks, done, size = [], list[str](), None
    for group in groups:
        names = ", ".join(device.label for device in group)
        watch(Doing(f"a training step of {settings.model} on {names}"))
        build, patience_s = Build(settings, joint), _STEP_WITHIN_S + LOADS_WITHIN_S
        try:
            with Party(group, build=build, purpose="check", deadline_s=patience_s) as party:
                replies = party.ask(lambda worker: list(worker.measure(Shares((BATCH,) * len(worker.devices)))))
                size = party.facts.model.gradient_bytes
        except GpubalanceError as error:
            checks.append(failed("training-step", error, f"{names}: "))
            continue
        done.append(names)
        if not all(reply.loss_is_finite for reply in replies if isinstance(reply, Timing)):
            detail = f"{names}: the loss is not a number on random data"
            remedy = "nvidia-smi -q -d ECC, and compare with the same step on another GPU: --gpus"
            checks.append(check("training-step", "warning", detail, remedy))
    if done:
        checks.append(ok("training-step", f"{settings.model} trained {BATCH} samples on each of {', '.join(done)}"))
    return checks, size


def copies(party: Party, devices: Sequence[Device], watch: Watch) -> tuple[list[Check], list[CopyTime]]:
    """Copies random data from each device to each other one, and compares what arrives."""
    if len(devices) < 2:
        return [skipped("peer-to-peer", "there is one device")], []
    watch(Doing("copying random data between the devices"))
    checks, times = [], []
    for source, target in permutations(range(len(devices)), 2):
        names = f"{devices[source].label} → {devices[target].label}"
        try:
            time, wrong = _copy(party, devices, source, target)
        except GpubalanceError as error:
            checks.append(failed("peer-to-peer", error, f"{names}: "))
            if isinstance(error, DeadlinePassed):
                checks.append(skipped("peer-to-peer", "the other pairs: not tried"))
                break  # each pair may hang for minutes: one is enough
            continue
        times.append(time)
        if wrong:
            checks.append(explained("peer-to-peer", "copy-differs", f"{names}: {wrong}"))
    if times and not checks:
        checks.append(ok("peer-to-peer", _all_arrived(times, devices)))
    return checks, times


def _copy(party: Party, devices: Sequence[Device], source: int, target: int) -> tuple[CopyTime, str]:
    """The time of a copy, and what is wrong with the data that arrived, empty if nothing."""
    here, there = devices[source], devices[target]
    nbytes = _COPIED_BYTES_SIMULATED if here.simulated else _COPIED_BYTES
    found = party.ask(lambda worker: worker.copy(source, target, nbytes))
    time = CopyTime(
        source=source,
        target=target,
        bytes=nbytes,
        seconds=found.seconds,
        bytes_per_s=nbytes / found.seconds,
        intact=not found.differing,
        peer_to_peer=None if here.simulated else within_or(None, lambda: read_peer_to_peer(here.uuid, there.uuid)),
    )
    what = "zeros" if found.zeros == found.differing else "other data"
    part = f"{found.differing / found.elements:.3g}"
    return time, f"{what} arrived in {part} of {format_bytes(nbytes)} of random data" if found.differing else ""


def _all_arrived(times: Sequence[CopyTime], devices: Sequence[Device]) -> str:
    detail = f"{len(times)} copies of {format_bytes(times[0].bytes)}, all arrived whole"
    if devices[0].simulated:
        return detail
    slowest = min(times, key=lambda time: time.bytes_per_s)
    names = f"{devices[slowest.source].label} → {devices[slowest.target].label}"
    ways = ", ".join(sorted({time.peer_to_peer for time in times if time.peer_to_peer}))
    return (
        f"{detail}; the slowest {format_bytes(round(slowest.bytes_per_s))}/s, {names}"
        f"{f'; peer-to-peer: {ways}' if ways else ''}"
    )


def all_reduce(
    party: Party, devices: Sequence[Device], gradient_bytes: int, watch: Watch
) -> tuple[Check, AllReduceTime | None]:
    """The check and the time of an all-reduce of as many bytes as the model's gradients have."""
    if len(devices) < 2:
        return skipped("all-reduce", "there is one device"), None
    watch(Doing(f"an all-reduce of {format_bytes(gradient_bytes)} over the devices"))
    try:
        found = party.ask(lambda worker: worker.reduce(gradient_bytes))
    except GpubalanceError as error:
        return failed("all-reduce", error), None
    rate = gradient_bytes / found.seconds
    time = AllReduceTime(
        bytes=gradient_bytes,
        seconds=found.seconds,
        bytes_per_s=rate,
        bus_bytes_per_s=rate * 2 * (len(devices) - 1) / len(devices),
        intact=not any(found.differing),
    )
    wrong = [device.label for device, number in zip(devices, found.differing, strict=True) if number]
    if wrong:
        detail = f"{', '.join(wrong)} got a wrong sum of the devices' parts"
        return explained("all-reduce", "copy-differs", detail), time
    text = f"{format_bytes(gradient_bytes)} of gradients in {format_seconds(found.seconds)}"
    return ok("all-reduce", f"{text}, {format_bytes(round(rate))}/s"), time
