"""What doctor tries on devices: a training step, the PCIe link, and what moves between them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations

from gpubalance.devices.health import (
    PcieLink,
    own_link,
    read_peer_to_peer,
    watched_links,
)
from gpubalance.jobs.doctor.check import check, explained, guarded, ok, skipped
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_bytes, format_seconds
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import AllReduceTime, Check, CopyTime
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import default_model
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import within_or
from gpubalance.workers.messages import (
    Build,
    Copied,
    Copy,
    Reduce,
    Reduced,
    Survey,
    Surveyed,
)
from gpubalance.workers.worker import LOADS_WITHIN_S
from gpubalance.workers.worker_group import WorkerGroup

BATCH = 8
_STEP_WITHIN_S = 300.0  # the first one: tracing, and cuDNN's search for algorithms
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def survey(worker_group: WorkerGroup) -> Surveyed:
    """Which of its devices TensorFlow can use, as a worker says."""
    with worker_group.worker() as worker:
        return worker.ask(Survey(devices=worker.devices), Surveyed)


def tensorflow_devices(
    surveyed: Surveyed, devices: Sequence[Device]
) -> Iterator[Check]:
    """The checks of TensorFlow's list of GPUs against NVML's, and of memory growth."""
    present = []
    for device in devices:
        why = surveyed.missing.get(device.uuid)
        if why is None:
            present.append(device.label)
        else:
            row = match(why) or known_error("left-out")
            detail = f"{device.label} ({device.name}): {why}"
            yield check("tensorflow-devices", "failure", detail, row.remedy)
    if present:
        yield ok(
            "tensorflow-devices", f"TensorFlow and NVML both list {', '.join(present)}"
        )
        yield memory_growth(surveyed.memory_growth, os.environ.get(_GROWTH))


def memory_growth(on: bool | None, wished: str | None) -> Check:
    """The check of memory growth, `on` in a worker.

    `wished` is the user's variable, which overrules a script.
    """
    if wished and wished.lower() in ("false", "0"):
        what = f"{_GROWTH}={wished}"
        remedy = f"unset {_GROWTH}"
    elif on is False:
        what = "off"
        remedy = f"export {_GROWTH}=true"
    else:
        return ok("memory-growth", "on here, and wherever split.scope() is entered")
    detail = f"{what}: TensorFlow takes all memory of every GPU at once"
    return check("memory-growth", "warning", detail, remedy)


class DoctorSteps:
    """One training step on each device.

    `size` is the bytes of the model's gradients, None without a step.
    """

    def __init__(self, settings: Settings, watch: Watch) -> None:
        self._settings = settings
        self._watch = watch
        self.size: int | None = None

    def checks(self, devices: Sequence[Device], joint: JointProfile) -> list[Check]:
        """All devices train in one process.

        If that fails each is tried alone, to find the faulty one.
        """
        together: list[Check] = []
        # A process sees one MIG slice.
        if not any(device.uuid.startswith("MIG-") for device in devices):
            together = self._step(devices, joint)
            if len(devices) == 1 or not _failures(together):
                return together
        alone: list[Check] = []
        for device in devices:
            alone += self._step([device], JointProfile())
        if not together:
            return alone
        return _failures(alone) or together

    def _step(self, devices: Sequence[Device], joint: JointProfile) -> list[Check]:
        names = ", ".join(device.label for device in devices)
        return list(
            guarded("training-step", self._trained(devices, joint, names), f"{names}: ")
        )

    def _trained(
        self, devices: Sequence[Device], joint: JointProfile, names: str
    ) -> Iterator[Check]:
        model = self._settings.model
        patience_s = _STEP_WITHIN_S + LOADS_WITHIN_S
        self._watch(Doing(f"a training step of {model} on {names}"))
        build = Build(settings=self._settings, joint=joint)
        with WorkerGroup(
            devices, build=build, purpose="check", deadline_s=patience_s
        ) as worker_group:
            split = BatchSplit((BATCH,) * len(devices))
            with worker_group.worker() as worker:
                replies = list(worker.measure(split))
            self.size = worker_group.facts.model.gradient_bytes
        timings = [reply for reply in replies if isinstance(reply, Timing)]
        if all(timing.loss_is_finite for timing in timings):
            trained = f"{model} trained {BATCH} samples on each of {names}"
            yield ok("training-step", trained)
        else:
            detail = f"{names}: the loss is NaN or infinite on random data"
            remedy = (
                "check nvidia-smi -q -d ECC, and compare with the same step on another "
                "GPU: --gpus"
            )
            yield check("training-step", "warning", detail, remedy)


def _failures(checks: Sequence[Check]) -> list[Check]:
    return [outcome for outcome in checks if outcome.status == "failure"]


def links(devices: Sequence[Device], seen: Mapping[str, PcieLink]) -> Iterator[Check]:
    """The check of each GPU's PCIe link, as it was while the GPU worked, against the card's own."""
    for device in devices:
        now = seen.get(device.uuid)
        own = within_or(None, partial(own_link, device))
        if now is None or own is None:
            yield skipped(
                "pcie-link", f"the driver does not report it ({device.label})"
            )
        elif now.width < own.width or now.generation < own.generation:
            name = f"{device.label} ({device.name})"
            slow = f"{name} ran at {now} under load, but the card supports {own}"
            yield explained("pcie-link", "pcie-link", slow, "warning")
        else:
            yield ok("pcie-link", f"{now} under load ({device.label})")


_COPIED_BYTES = 64 << 20
# They share one memory: a larger copy tells nothing more
_COPIED_BYTES_SIMULATED = 1 << 20
# Those of the model `probe`: what the all-reduce moves if no training step has told the size.
_GRADIENT_BYTES = 78_900_000 * 4
_BETWEEN = ("peer-to-peer", "all-reduce")


def copies(
    worker_group: WorkerGroup, devices: Sequence[Device], watch: Watch
) -> Iterator[Check | CopyTime]:
    """Copies random data from each device to each other one, and compares what arrives.

    Raises what a worker does.
    """
    watch(Doing("copying random data between the devices"))
    times: dict[str, CopyTime] = {}
    for source, target in permutations(range(len(devices)), 2):
        names = f"{devices[source].label} → {devices[target].label}"
        simulated = devices[source].simulated
        nbytes = _COPIED_BYTES_SIMULATED if simulated else _COPIED_BYTES
        copy = Copy(devices=tuple(devices), source=source, target=target, nbytes=nbytes)
        copied = _copied(worker_group, copy)
        times[names] = _copy_time(copy, copied, devices)
        yield times[names]
        if copied.differing:
            what = "zeros" if copied.zeros == copied.differing else "other data"
            part = f"{copied.differing / copied.elements:.3g}"
            wrong = f"{what} arrived in {part} of {format_bytes(nbytes)} of random data"
            yield explained("peer-to-peer", "copy-differs", f"{names}: {wrong}")
    if all(time.intact for time in times.values()):
        yield ok("peer-to-peer", _all_arrived(times, simulated=devices[0].simulated))


def _copied(worker_group: WorkerGroup, copy: Copy) -> Copied:
    with worker_group.worker() as worker:
        return worker.ask(copy, Copied)


def _copy_time(copy: Copy, copied: Copied, devices: Sequence[Device]) -> CopyTime:
    source = devices[copy.source]
    target = devices[copy.target]
    peer_to_peer = None
    if not source.simulated:
        peer_to_peer = within_or(
            None, lambda: read_peer_to_peer(source.uuid, target.uuid)
        )
    return CopyTime(
        source=copy.source,
        target=copy.target,
        bytes=copy.nbytes,
        seconds=copied.seconds,
        bytes_per_s=copy.nbytes / copied.seconds,
        intact=not copied.differing,
        peer_to_peer=peer_to_peer,
    )


def _all_arrived(times: Mapping[str, CopyTime], *, simulated: bool) -> str:
    names, slowest = min(times.items(), key=lambda item: item[1].bytes_per_s)
    text = f"{len(times)} copies of {format_bytes(slowest.bytes)}, all intact"
    if not simulated:  # these copy at the pace of the host's memory
        text += f". The slowest: {format_bytes(round(slowest.bytes_per_s))}/s, {names}"
    ways = {time.peer_to_peer for time in times.values() if time.peer_to_peer}
    if ways:
        text += f". Peer-to-peer: {', '.join(sorted(ways))}"
    return text


def all_reduce(
    worker_group: WorkerGroup, devices: Sequence[Device], nbytes: int, watch: Watch
) -> Iterator[Check | AllReduceTime]:
    """The check and the time of an all-reduce of as many bytes as the model's gradients have.

    Raises what a worker does.
    """
    size = format_bytes(nbytes)
    watch(Doing(f"an all-reduce of {size} over the devices"))
    reduce = Reduce(devices=tuple(devices), nbytes=nbytes)
    with worker_group.worker() as worker:
        reduced = worker.ask(reduce, Reduced)
    rate = nbytes / reduced.seconds
    yield AllReduceTime(
        bytes=nbytes,
        seconds=reduced.seconds,
        bytes_per_s=rate,
        bus_bytes_per_s=rate * 2 * (len(devices) - 1) / len(devices),
        intact=not any(reduced.differing),
    )
    pairs = zip(devices, reduced.differing, strict=True)
    wrong = [device.label for device, differing in pairs if differing]
    if wrong:
        detail = f"{', '.join(wrong)} got a wrong sum of the devices' parts"
        yield explained("all-reduce", "copy-differs", detail)
    else:
        in_time = f"{size} of gradients in {format_seconds(reduced.seconds)}"
        yield ok("all-reduce", f"{in_time}, {format_bytes(round(rate))}/s")


Finding = Check | CopyTime | AllReduceTime


def checks_on_devices(
    worker_group: WorkerGroup,
    devices: tuple[Device, ...],
    joint: JointProfile,
    model: str | None,
    watch: Watch,
) -> Iterator[Finding]:
    """The checks of all that the devices are tried with; nothing is tried without a device.

    The `worker_group` copies and sums; the steps have their own.
    """
    if not devices:
        why = "not tried: TensorFlow can use none of the devices"
        yield from _skipped(why, "training-step", *_BETWEEN)
        return
    if model is None:
        model = default_model(simulated=devices[0].simulated)
    steps = DoctorSteps(Settings(model=model), watch)
    gpus = [device for device in devices if device.is_local_gpu]
    with watched_links([device.uuid for device in gpus]) as seen:
        yield from steps.checks(devices, joint)
    yield from guarded("pcie-link", links(gpus, seen))
    if any(device.uuid.startswith("MIG-") for device in devices):
        devices = devices[:1]  # CUDA shows a process one MIG slice only
    if len(devices) == 1:
        yield from _skipped("there is only one device", *_BETWEEN)
        return
    if len(hosts_of(devices)) > 1:
        why = "not tried: the step already summed its gradients between the hosts"
        yield from _skipped(why, *_BETWEEN)
        return
    worker_group.regroup(devices)
    size = steps.size or _GRADIENT_BYTES
    yield from guarded("peer-to-peer", copies(worker_group, devices, watch))
    yield from guarded("all-reduce", all_reduce(worker_group, devices, size, watch))


def _skipped(why: str, *topics: str) -> Iterator[Check]:
    return (skipped(topic, why) for topic in topics)
