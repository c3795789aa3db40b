"""Which GPUs CUDA_VISIBLE_DEVICES hides from TensorFlow."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpubalance.devices.gpus import Gpu, Reading

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def mark_hidden(reading: Reading, environment: Mapping[str, str]) -> Reading:
    """The reading with each hidden GPU marked as unusable, and why.

    The list is read as CUDA reads it: up to the first entry that names no GPU. UUIDs, or their
    beginnings, are exact. Numbers follow CUDA's order, which is NVML's only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are of one model; otherwise a number's meaning can't
    be known here, and every GPU is marked with what to set.
    """
    listed = environment.get(_VARIABLE)
    if listed is None:
        return reading
    entries = [entry.strip() for entry in listed.split(",")]
    by_number = any(entry.isdigit() for entry in entries)
    if by_number and not _numbered_as_nvml(reading, environment):
        why = (
            f"{_VARIABLE}={listed} means CUDA's order, fastest first: set UUIDs, or "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
        return _marked(reading, (), why)
    shown = []
    for entry in entries:
        named = [gpu.uuid for gpu in reading.gpus if _names(entry, gpu)]
        if len(named) != 1:
            break
        shown += named
    return _marked(reading, shown, f"hidden by {_VARIABLE}={listed}")


def _numbered_as_nvml(reading: Reading, environment: Mapping[str, str]) -> bool:
    models = {gpu.name for gpu in reading.gpus}
    return len(models) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _names(entry: str, gpu: Gpu) -> bool:
    if entry.isdigit():
        # As text, as `int` rejects thousands of digits
        return (entry.lstrip("0") or "0") == str(gpu.index)
    if len(entry) <= len("GPU-"):
        return False
    uuids = [gpu.uuid] + [piece.uuid for piece in gpu.mig_slices]
    return any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def _marked(reading: Reading, shown: Collection[str], why: str) -> Reading:
    gpus = []
    for gpu in reading.gpus:
        if gpu.uuid not in shown:
            hidden = {"unusable": gpu.unusable or why, "mig_slices": ()}
            gpu = gpu.model_copy(update=hidden)
        gpus.append(gpu)
    return reading.model_copy(update={"gpus": tuple(gpus)})
