"""Finds the GPUs that the user's CUDA_VISIBLE_DEVICES hides: they may be somebody else's."""

from __future__ import annotations

from collections.abc import Mapping

from gpubalance.devices.gpus import Gpu, Reading

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def mark_hidden(reading: Reading, environment: Mapping[str, str]) -> Reading:
    """The reading with each hidden GPU marked as unusable, and why.

    The list is read as CUDA reads it: up to the first entry that names no GPU. UUIDs, or their beginnings, are exact.
    Numbers follow CUDA's order, which is NVML's only with CUDA_DEVICE_ORDER=PCI_BUS_ID or if all GPUs are of one model;
    otherwise a number's meaning can't be known here, and every GPU is marked with what to set.
    """
    listed = environment.get(_VARIABLE)
    if listed is None or not reading.gpus:
        return reading
    entries = [entry.strip() for entry in listed.split(",")]
    by_number = any(entry.isdigit() for entry in entries)
    if by_number and not _numbered_as_nvml(reading, environment):
        why = f"{_VARIABLE}={listed} means CUDA's order, fastest first: set UUIDs, or CUDA_DEVICE_ORDER=PCI_BUS_ID"
        return _marked(reading, set(), why)
    shown: set[str] = set()
    for entry in entries:
        named = [gpu for gpu in reading.gpus if _names(entry, gpu)]
        if len(named) != 1:
            break
        shown.add(named[0].uuid)
    return _marked(reading, shown, f"hidden by {_VARIABLE}={listed}")


def _numbered_as_nvml(reading: Reading, environment: Mapping[str, str]) -> bool:
    alike = len({gpu.name for gpu in reading.gpus}) == 1
    return alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _names(entry: str, gpu: Gpu) -> bool:
    if entry.isdigit():
        return entry.lstrip("0") == (str(gpu.index) if gpu.index else "")  # int() rejects thousands of digits
    uuids = [gpu.uuid, *(piece.uuid for piece in gpu.mig_slices)]
    return len(entry) > len("GPU-") and any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def _marked(reading: Reading, shown: set[str], why: str) -> Reading:
    gpus = [
        gpu if gpu.uuid in shown else gpu.model_copy(update={"unusable": gpu.unusable or why, "mig_slices": ()})
        for gpu in reading.gpus
    ]
    return reading.model_copy(update={"gpus": tuple(gpus)})
