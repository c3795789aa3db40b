"""The error when memory runs out in training: which device, with what batch, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.engine.failures import failing_replica
from gpubalance.errors import OutOfMemory
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, share_text


def out_of_memory(
    text: str,
    names: Sequence[str],
    devices: Sequence[Device],
    own: Shares,
    tried: Shares | None,
    *,
    trains: bool,
) -> OutOfMemory:
    """The error for TensorFlow's text. `names` are its names for the devices, `own` has the split's
    shares.

    `tried` has the shares of the last step that began, None before the first.
    """
    replica = failing_replica(text, names)
    where, having, less = "a device", "before its first step", "take smaller batches"
    if tried is not None:
        having = f"with the batches {tried}"
    if replica is not None:
        where = f"{devices[replica].label} ({devices[replica].name})"
    if tried is not None and replica is not None:
        having = (
            f"with its batch of {share_text(tried.batches[replica], tried.micro_batches[replica])}"
        )
        less = _less(devices, own, tried, replica, trains=trains)
    error = OutOfMemory(f"{where} ran out of memory {having}", replica=replica)
    error.remedy = (
        f"{less}; gpubalance balance --margin 1GiB makes a plan that leaves more memory free"
    )
    return error


def _less(
    devices: Sequence[Device], own: Shares, tried: Shares, replica: int, *, trains: bool
) -> str:
    """What to type: the split's own batches, or half of that device's, as nobody knows what would
    fit.
    """
    if not trains:
        return (
            f"take a smaller batch_size, such as {max(1, tried.global_batch // 2)}, or a split "
            "with less there"
        )
    if tried.batches[replica] > own.batches[replica]:
        return (
            f"the split is of {own.global_batch} samples a step, and got "
            f"{tried.global_batch}: leave batch_size out, "
            f"or give up to {own.global_batch}"
        )
    if tried.micro_batches[replica] < 2:
        return "take a smaller model, or leave the device out"
    gpus, batches = [device.index for device in devices], list(own.batches)
    parts, fewer = list(own.micro_batches), list(own.batches)
    parts[replica], fewer[replica] = (-(-size // 2) for size in (parts[replica], fewer[replica]))
    return (
        f"take it in parts, gpubalance.Split({gpus}, {batches}, micro_batches={parts}), or "
        "less there, "
        f"gpubalance.Split({gpus}, {fewer}), and half of that again while it does not fit"
    )
