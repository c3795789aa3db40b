"""How a command ends early: interrupted, by a lost GPU, by what some of its devices can't do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpubalance.devices.nvml import Gpu, Reading, read
from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    GpuLost,
    Interrupted,
    OutOfMemory,
    PartialResult,
    TimeLimitPassed,
)
from gpubalance.remedies import known_error, match
from gpubalance.settings.device import Device
from gpubalance.system.deadlines import within_or
from gpubalance.workers.messages import Ready


@contextmanager
def attach_partial(partial: Callable[[], Any]) -> Iterator[None]:
    """Every error that leaves the block carries what `partial` returns, unless it has its own.

    An interrupt of the main thread leaves it as Interrupted.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, partial=partial()) from None
    except GpubalanceError as error:
        error.partial = error.partial or partial()
        raise


def raise_if_refused(facts: Ready) -> None:
    """Raises BadInput with what `Split.fit` would say of the model, if it would refuse it."""
    refused = facts.combine_rules.refused
    if refused is not None:
        raise BadInput(refused.message, remedy=refused.remedy)


Failed = Sequence[tuple[Device, GpubalanceError]]


def one_error(kind: type[GpubalanceError], failed: Failed) -> GpubalanceError:
    """An error of that kind that names each device, with what to do for each."""
    several = len({device.label for device, _ in failed}) > 1
    messages = []
    remedies = []
    log = ""
    for device, error in failed:
        message = error.message
        if device.label not in message:
            message = f"{device.label}: {message}"
        messages.append(message)
        remedy = error.remedy
        if several:
            remedy = f"{device.label}: {remedy}"
        remedies.append(remedy)
        # Of a lack of memory the log says no more than the message does.
        if not log and not isinstance(error, OutOfMemory):
            log = error.log
    return kind(
        "; ".join(dict.fromkeys(messages)),
        cause="" if several else failed[0][1].cause,
        remedy="\n".join(dict.fromkeys(remedies)),
        log=log,
    )


@contextmanager
def raising_gpu_lost(devices: Sequence[Device]) -> Iterator[None]:
    """Raises GpuLost instead of another error if a GPU is lost.

    To who asks a worker that looks like a CUDA error, a crash or silence.
    """
    try:
        yield
    except (EnvironmentFault, PartialResult, DeadlinePassed) as error:
        if isinstance(error, GpuLost | TimeLimitPassed):
            raise
        lost = lost_gpu(devices)
        if lost is None:
            raise
        row = known_error("gpu-lost")
        raise GpuLost(
            f"{lost.label} ({lost.name}) is lost: NVML no longer reaches it",
            cause=row.cause,
            remedy=row.remedy,
            log=error.log,
            partial=error.partial,
        ) from error


def lost_gpu(devices: Sequence[Device]) -> Device | None:
    """The first device that NVML no longer reaches; None if it reaches all, or does not answer."""
    gpus = [device for device in devices if device.is_local_gpu]
    if not gpus:
        return None
    present = within_or(Reading(), read).gpus
    if not present:
        return None
    return next((device for device in gpus if _is_lost(device, present)), None)


def _is_lost(device: Device, gpus: Sequence[Gpu]) -> bool:
    for gpu in gpus:
        uuids = [gpu.uuid] + [slice_.uuid for slice_ in gpu.mig_slices]
        if device.uuid in uuids:
            row = match(gpu.unusable or "")
            return row is not None and row.code in ("gpu-lost", "gpu-needs-reset")
    return True
