"""Out of memory while a split trains: which device, with what batch, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.engine.failures import failing_replica
from gpubalance.errors import OutOfMemory
from gpubalance.settings.device import Device
from gpubalance.settings.shares import Shares, share_text


def out_of_memory(
    text: str, names: Sequence[str], devices: Sequence[Device], tried: Shares | None, *, trains: bool
) -> OutOfMemory:
    """The error for TensorFlow's text. `names` are its names of the devices, `tried` what they got, if anything yet."""
    replica = _replica(text, names)
    where = "a device" if replica is None else f"{devices[replica].label} ({devices[replica].name})"
    error = OutOfMemory(f"{where} ran out of memory {_with(tried, replica)}", replica=replica)
    smaller = "take a smaller batch there" if trains else "take a smaller batch_size, or a split with less there"
    error.remedy = (
        f"{smaller}{_in_parts(tried, replica) if trains else ''}; gpubalance balance --margin 1GiB makes a plan that "
        "leaves more memory free"
    )
    return error


def _with(tried: Shares | None, replica: int | None) -> str:
    if tried is None:
        return "before its first step"
    if replica is None:
        return f"with the batches {tried}"
    return f"with its batch of {share_text(tried.batches[replica], tried.micro_batches[replica])}"


def _in_parts(tried: Shares | None, replica: int | None) -> str:
    if tried is None or replica is None or tried.micro_batches[replica] < 2:
        return ""
    sizes = list(tried.micro_batches)
    sizes[replica] = -(-sizes[replica] // 2)
    return f", or the same in smaller parts with micro_batches={sizes}"


def _replica(text: str, names: Sequence[str]) -> int | None:
    """TensorFlow numbers the GPUs that the process sees: a split may have others of them first."""
    named = (i for i, name in enumerate(names) if name.startswith("GPU") and f"device:{name} " in text)
    found = next(named, failing_replica(text))
    return found if found is not None and found < len(names) else None
