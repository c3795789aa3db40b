"""What is tried on the devices: TensorFlow's own list of them, a training step, copies, an all-reduce."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations

from gpubalance.devices.health import read_peer_to_peer
from gpubalance.errors import DeadlinePassed, GpubalanceError
from gpubalance.jobs.doctor.topic import Topic
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_bytes, format_seconds
from gpubalance.remedies import known, match
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import within
from gpubalance.workers.messages import Surveyed
from gpubalance.workers.party import Build, Party
from gpubalance.workers.worker import LOADS_WITHIN_S

BATCH = 8
_STEP_WITHIN_S = 300.0  # the first one: tracing, and cuDNN's search for algorithms
_COPIED_BYTES = 64 << 20
_COPIED_BYTES_SIMULATED = 1 << 20  # one memory: nothing is learnt from more
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
DEVICES = Topic("tensorflow-devices", "TensorFlow's GPUs")
STEP = Topic("training-step", "training step")
COPIES = Topic("peer-to-peer", "copies between devices")
ALL_REDUCE = Topic("all-reduce", "all-reduce")
_MEMORY_GROWTH = Topic("memory-growth", "memory growth")


def tensorflow_devices(found: Surveyed, devices: Sequence[Device]) -> list[Check]:
    """TensorFlow's list of GPUs against NVML's, and whether they take memory as they need it."""
    checks = []
    for why in dict.fromkeys(found.missing.values()):
        lacking = [device for device in devices if found.missing.get(device.uuid) == why]
        row = match(why) or known("left-out")
        detail = f"{', '.join(f'{d.label} ({d.name})' for d in lacking)}: {why}"
        checks.append(DEVICES.check("failure", detail, row.remedy))
    has = [device.label for device in devices if device.uuid not in found.missing]
    if has:
        detail = f"it has {', '.join(has)}, as NVML has"
        checks.append(DEVICES.ok(detail))
    return [*checks, *([memory_growth(found.memory_growth, os.environ.get(_GROWTH))] if has else [])]


def memory_growth(on: bool | None, wished: str | None) -> Check:
    """`on` is what a worker has, `wished` the user's own variable, which overrules what a script asks for."""
    if (wished or "").lower() in ("false", "0"):
        detail = f"{_GROWTH}={wished}: a script takes all memory of every GPU at once, and no other finds any"
        return _MEMORY_GROWTH.check("warning", detail, f"unset {_GROWTH}")
    if on is False:
        detail = "off: TensorFlow takes all memory of every GPU at once"
        return _MEMORY_GROWTH.check("warning", detail, f"export {_GROWTH}=true")
    return _MEMORY_GROWTH.ok("on here, and wherever split.scope() is entered")


def training_steps(
    devices: Sequence[Device], joint: JointProfile, settings: Settings, watch: Watch
) -> tuple[list[Check], int | None]:
    """One step of one batch on every device, and the bytes of the model's gradients, None where there was no step.

    All of them train in one process. Where that fails each is tried alone, to tell which it is.
    """
    # CUDA shows a process one MIG slice only.
    singly = any(device.uuid.startswith("MIG-") for device in devices)
    groups = [(device,) for device in devices] if singly else [tuple(devices)]
    checks, size = _each(groups, joint, settings, watch)
    if not singly and len(devices) > 1 and any(check.status == "failure" for check in checks):
        alone, size_alone = _each([(device,) for device in devices], JointProfile(), settings, watch)
        checks = [check for check in alone if check.status == "failure"] or checks
        size = size or size_alone
    return checks, size


def _each(
    groups: Sequence[tuple[Device, ...]], joint: JointProfile, settings: Settings, watch: Watch
) -> tuple[list[Check], int | None]:
    checks, done, size = [], list[str](), None
    for group in groups:
        names = ", ".join(device.label for device in group)
        watch(Doing(f"a training step of {settings.model} on {names}"))
        try:
            finite, size = _step(group, joint, settings)
        except GpubalanceError as error:
            checks.append(STEP.failed(error, where=f"{names}: "))
            continue
        done += [device.label for device in group]
        if not finite:
            checks.append(_no_number(names))
    if done:
        detail = f"{settings.model} trained {BATCH} samples on each of {', '.join(done)}"
        checks.append(STEP.ok(detail))
    return checks, size


def _step(group: Sequence[Device], joint: JointProfile, settings: Settings) -> tuple[bool, int]:
    """Whether the loss is a number, and the bytes of the gradients."""
    build = Build(settings, joint)
    with Party(group, build=build, purpose="check", deadline_s=_STEP_WITHIN_S + LOADS_WITHIN_S) as party:
        replies = party.ask(lambda worker: list(worker.measure(Shares((BATCH,) * len(group)))))
        return all(one.loss_is_finite for one in replies if isinstance(one, Timing)), party.facts.gradient_bytes


def _no_number(names: str) -> Check:
    return STEP.check(
        "warning",
        f"{names}: the loss is no number on random data",
        "nvidia-smi -q -d ECC, and compare with the same step on another GPU: --gpus",
    )


def copies(party: Party, devices: Sequence[Device], watch: Watch) -> tuple[list[Check], list[CopyTime]]:
    """Random data from each device to each other, compared at the other end."""
    if len(devices) < 2:
        return [COPIES.skipped("there is one device")], []
    watch(Doing("copying random data between the devices"))
    checks, times = [], []
    for source, target in permutations(range(len(devices)), 2):
        names = f"{devices[source].label} → {devices[target].label}"
        try:
            copied = _copy(party, devices, source, target)
        except GpubalanceError as error:
            checks.append(COPIES.failed(error, where=f"{names}: "))
            if isinstance(error, DeadlinePassed):
                checks.append(COPIES.skipped("the other pairs: not tried"))
                break  # of many pairs that hang, each for minutes, one is enough
            continue
        times.append(copied[0])
        if copied[1]:
            checks.append(COPIES.known("failure", known("copy-differs"), f"{names}: {copied[1]}"))
    if times and not checks:
        checks.append(COPIES.ok(_all_arrived(times, devices)))
    return checks, times


def _copy(party: Party, devices: Sequence[Device], source: int, target: int) -> tuple[CopyTime, str]:
    """The copy, and what is wrong with what arrived."""
    simulated = devices[source].simulated
    nbytes = _COPIED_BYTES_SIMULATED if simulated else _COPIED_BYTES
    found = party.ask(lambda worker: worker.copy(source, target, nbytes))
    direct = None if simulated else _peer_to_peer(devices[source], devices[target])
    time = CopyTime(
        source=source,
        target=target,
        bytes=nbytes,
        seconds=found.seconds,
        bytes_per_s=nbytes / found.seconds,
        intact=not found.differing,
        peer_to_peer=direct,
    )
    if not found.differing:
        return time, ""
    part = f"{found.differing / found.elements:.3g}"
    what = "zeros" if found.zeros == found.differing else "other data"
    return time, f"{what} arrived in {part} of {format_bytes(nbytes)} of random data"


def _peer_to_peer(source: Device, target: Device) -> str | None:
    try:
        return within(lambda: read_peer_to_peer(source.uuid, target.uuid))
    except GpubalanceError:
        return None


def _all_arrived(times: Sequence[CopyTime], devices: Sequence[Device]) -> str:
    slowest = min(times, key=lambda time: time.bytes_per_s)
    names = f"{devices[slowest.source].label} → {devices[slowest.target].label}"
    detail = f"{len(times)} of {format_bytes(times[0].bytes)}, all arrived whole"
    if devices[0].simulated:
        return detail
    ways = sorted({time.peer_to_peer for time in times if time.peer_to_peer})
    told = f"; peer-to-peer: {', '.join(ways)}" if ways else ""
    return f"{detail}; the slowest {format_bytes(round(slowest.bytes_per_s))}/s, {names}{told}"


def all_reduce(
    party: Party, devices: Sequence[Device], gradient_bytes: int, watch: Watch
) -> tuple[Check, AllReduceTime | None]:
    """A sum over all devices of as many bytes as the model's gradients have."""
    if len(devices) < 2:
        return ALL_REDUCE.skipped("there is one device"), None
    watch(Doing(f"an all-reduce of {format_bytes(gradient_bytes)} over the devices"))
    try:
        found = party.ask(lambda worker: worker.reduce(gradient_bytes))
    except GpubalanceError as error:
        return ALL_REDUCE.failed(error), None
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
        detail = f"{', '.join(wrong)} got another sum than the devices' parts give"
        return ALL_REDUCE.known("failure", known("copy-differs"), detail), time
    detail = f"{format_bytes(gradient_bytes)} of gradients in {format_seconds(found.seconds)}, "
    return ALL_REDUCE.ok(f"{detail}{format_bytes(round(rate))}/s"), time
