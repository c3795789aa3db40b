"""Checks that use each device: TensorFlow's list of them, a training step, the PCIe link."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from gpubalance.devices.health import PcieLink, own_link
from gpubalance.jobs.doctor.check import check, explained, guarded, ok, skipped
from gpubalance.jobs.events import Doing, Watch
from gpubalance.remedies import known_error, match
from gpubalance.results.checkup import Check
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import within_or
from gpubalance.workers.messages import Build, Survey, Surveyed
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
        if not all(
            reply.loss_is_finite for reply in replies if isinstance(reply, Timing)
        ):
            detail = f"{names}: the loss is NaN or infinite on random data"
            remedy = (
                "check nvidia-smi -q -d ECC, and compare with the same step on another "
                "GPU: --gpus"
            )
            yield check("training-step", "warning", detail, remedy)
        yield ok("training-step", f"{model} trained {BATCH} samples on each of {names}")


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
