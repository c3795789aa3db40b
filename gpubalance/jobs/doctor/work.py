"""Checks that use the devices: TensorFlow's list of them, a training step, copies, an
all-reduce.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations

from gpubalance.devices.health import read_peer_to_peer
from gpubalance.devices.link import PcieLink, own_link
from gpubalance.jobs.doctor.check import check, explained, guarded, ok, skipped
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_bytes, format_seconds
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import within_or
from gpubalance.workers.messages import Build, Copied, Copy, Reduce, Reduced, Surveyed
from gpubalance.workers.party import Party
from gpubalance.workers.worker import LOADS_WITHIN_S

BATCH = 8
_STEP_WITHIN_S = 300.0  # the first one: tracing, and cuDNN's search for algorithms
_COPIED_BYTES = 64 << 20
_COPIED_BYTES_SIMULATED = 1 << 20  # they share one memory: a larger copy tells nothing more
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def tensorflow_devices(found: Surveyed, devices: Sequence[Device]) -> Iterator[Check]:
    """The checks of TensorFlow's list of GPUs against NVML's, and of memory growth."""
    for device in devices:
        if device.uuid in found.missing:
            why = found.missing[device.uuid]
            row = match(why) or known_error("left-out")
            yield check(
                "tensorflow-devices",
                "failure",
                f"{device.label} ({device.name}): {why}",
                row.remedy,
            )
    has = [device.label for device in devices if device.uuid not in found.missing]
    if has:
        yield ok("tensorflow-devices", f"it has {', '.join(has)}, like NVML")
        yield memory_growth(found.memory_growth, os.environ.get(_GROWTH))


def memory_growth(on: bool | None, wished: str | None) -> Check:
    """The check of memory growth, `on` in a worker; `wished` is the user's variable, which
    overrules a script.
    """
    refused = (wished or "").lower() in ("false", "0")
    if not refused and on is not False:
        return ok("memory-growth", "on here, and wherever split.scope() is entered")
    what, mend = (
        (f"{_GROWTH}={wished}", f"unset {_GROWTH}")
        if refused
        else ("off", f"export {_GROWTH}=true")
    )
    return check(
        "memory-growth",
        "warning",
        f"{what}: TensorFlow takes all memory of every GPU at once",
        mend,
    )


class DoctorSteps:
    """One training step on each device. `size` is the bytes of the model's gradients, None without
    a step.
    """

    def __init__(self, settings: Settings, watch: Watch) -> None:
        self._settings, self._watch = settings, watch
        self.size: int | None = None

    def checks(self, devices: Sequence[Device], joint: JointProfile) -> list[Check]:
        """All devices train in one process. If that fails each is tried alone, to find the faulty
        one.
        """
        # A process sees one of them.
        is_cut = any(device.uuid.startswith("MIG-") for device in devices)
        together = [] if is_cut else self._step(devices, joint)
        if together and (len(devices) == 1 or not _failures(together)):
            return together
        alone = [found for device in devices for found in self._step([device], JointProfile())]
        return (_failures(alone) or together) if together else alone

    def _step(self, devices: Sequence[Device], joint: JointProfile) -> list[Check]:
        names = ", ".join(device.label for device in devices)
        return [*guarded("training-step", self._trained(devices, joint, names), f"{names}: ")]

    def _trained(
        self, devices: Sequence[Device], joint: JointProfile, names: str
    ) -> Iterator[Check]:
        model, patience_s = self._settings.model, _STEP_WITHIN_S + LOADS_WITHIN_S
        self._watch(Doing(f"a training step of {model} on {names}"))
        build = Build(settings=self._settings, joint=joint)
        with Party(devices, build=build, purpose="check", deadline_s=patience_s) as party:
            replies = party.ask(
                lambda worker: list(worker.measure(Shares((BATCH,) * len(worker.devices))))
            )
            self.size = party.facts.model.gradient_bytes
        if not all(reply.loss_is_finite for reply in replies if isinstance(reply, Timing)):
            detail = f"{names}: the loss is not a number on random data"
            remedy = "nvidia-smi -q -d ECC, and compare with the same step on another GPU: --gpus"
            yield check("training-step", "warning", detail, remedy)
        yield ok("training-step", f"{model} trained {BATCH} samples on each of {names}")


def _failures(checks: Sequence[Check]) -> list[Check]:
    return [found for found in checks if found.status == "failure"]


def links(devices: Sequence[Device], seen: Mapping[str, PcieLink]) -> Iterator[Check]:
    """The check of each GPU's PCIe link, as it was while the GPU worked, against the card's own."""
    for device in devices:
        now, own = seen.get(device.uuid), within_or(None, partial(own_link, device))
        if now is None or own is None:
            yield skipped("pcie-link", f"the driver does not say ({device.label})")
        elif now.width < own.width or now.generation < own.generation:
            name = f"{device.label} ({device.name})"
            slow = f"{name} ran at {now} under load, but the card supports {own}"
            yield explained("pcie-link", "pcie-link", slow, "warning")
        else:
            yield ok("pcie-link", f"{now} under load ({device.label})")


def copies(party: Party, devices: Sequence[Device], watch: Watch) -> Iterator[Check | CopyTime]:
    """Copies random data from each device to each other one, and compares what arrives. Raises what
    a worker does.
    """
    watch(Doing("copying random data between the devices"))
    times = dict[str, CopyTime]()
    for source, target in permutations(range(len(devices)), 2):
        names = f"{devices[source].label} → {devices[target].label}"
        times[names], wrong = _copy(party, devices, source, target)
        yield times[names]
        if wrong:
            yield explained("peer-to-peer", "copy-differs", f"{names}: {wrong}")
    if all(time.intact for time in times.values()):
        yield ok("peer-to-peer", _all_arrived(times, simulated=devices[0].simulated))


def _copy(
    party: Party, devices: Sequence[Device], source: int, target: int
) -> tuple[CopyTime, str]:
    """The time of a copy, and what is wrong with the data that arrived, empty if nothing."""
    here, there = devices[source], devices[target]
    nbytes = _COPIED_BYTES_SIMULATED if here.simulated else _COPIED_BYTES
    copy = Copy(devices=tuple(devices), source=source, target=target, nbytes=nbytes)
    found = party.ask(lambda worker: worker.ask(copy, Copied))
    time = CopyTime(
        source=source,
        target=target,
        bytes=nbytes,
        seconds=found.seconds,
        bytes_per_s=nbytes / found.seconds,
        intact=not found.differing,
        peer_to_peer=None
        if here.simulated
        else within_or(None, lambda: read_peer_to_peer(here.uuid, there.uuid)),
    )
    what = "zeros" if found.zeros == found.differing else "other data"
    part = f"{found.differing / found.elements:.3g}"
    return (
        time,
        f"{what} arrived in {part} of {format_bytes(nbytes)} of random data"
        if found.differing
        else "",
    )


def _all_arrived(times: Mapping[str, CopyTime], *, simulated: bool) -> str:
    names, slowest = min(times.items(), key=lambda one: one[1].bytes_per_s)
    whole = f"{len(times)} copies of {format_bytes(slowest.bytes)}, all arrived whole"
    ways = ", ".join(sorted({time.peer_to_peer for time in times.values() if time.peer_to_peer}))
    # Simulated devices copy at the pace of the host's memory.
    rate = (
        "" if simulated else f". The slowest: {format_bytes(round(slowest.bytes_per_s))}/s, {names}"
    )
    return f"{whole}{rate}{f'. Peer-to-peer: {ways}' if ways else ''}"


def all_reduce(
    party: Party, devices: Sequence[Device], nbytes: int, watch: Watch
) -> Iterator[Check | AllReduceTime]:
    """The check and the time of an all-reduce of as many bytes as the model's gradients have.
    Raises as `copies`.
    """
    size = format_bytes(nbytes)
    watch(Doing(f"an all-reduce of {size} over the devices"))
    reduce = Reduce(devices=tuple(devices), nbytes=nbytes)
    found = party.ask(lambda worker: worker.ask(reduce, Reduced))
    rate = nbytes / found.seconds
    yield AllReduceTime(
        bytes=nbytes,
        seconds=found.seconds,
        bytes_per_s=rate,
        bus_bytes_per_s=rate * 2 * (len(devices) - 1) / len(devices),
        intact=not any(found.differing),
    )
    wrong = [
        device.label for device, number in zip(devices, found.differing, strict=True) if number
    ]
    if wrong:
        yield explained(
            "all-reduce",
            "copy-differs",
            f"{', '.join(wrong)} got a wrong sum of the devices' parts",
        )
    else:
        in_time = f"{size} of gradients in {format_seconds(found.seconds)}"
        yield ok("all-reduce", f"{in_time}, {format_bytes(round(rate))}/s")
