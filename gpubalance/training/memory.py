"""The errors when memory runs out in training: which device, with what batch, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from gpubalance.engine.failures import TaskFailedError, failing_replica, memory_row
from gpubalance.engine.replicas import Replicas
from gpubalance.errors import OutOfMemory
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.follow import SplitChange
from gpubalance.results.layers import Layers
from gpubalance.settings.batch_split import BatchSplit, share_text
from gpubalance.settings.device import Device, hosts_of
from gpubalance.system.files import is_about_files


def ran_out(error: BaseException | None) -> bool:
    """Whether TensorFlow, cuDNN, cuBLAS or NCCL tell of a lack of memory."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return not is_about_files(str(error))
    return error is not None and memory_row(error) is not None


def out_of_memory(
    error: BaseException,
    replicas: Replicas,
    devices: Sequence[Device],
    own: BatchSplit | None,
    tried: BatchSplit | None,
    *,
    trains: bool,
    changes: Sequence[SplitChange] = (),
) -> OutOfMemory:
    """Our error for TensorFlow's.

    `own` has the split's shares, None if it divides any batch, `tried` those of the last step that
    began, None before the first; `changes` are those that a monitor made of the split.
    """
    replica = _failing(error, replicas)
    where = "a device"
    if replica is not None:
        where = f"{devices[replica].label} ({devices[replica].name})"
    less = "take smaller batches"
    if tried is None:
        having = "before its first step"
    elif replica is None:
        having = f"with the batches {tried}"
    else:
        share = share_text(tried.batches[replica], tried.micro_batches[replica])
        having = f"with its batch of {share}"
        less = _less(devices, own, tried, replica, trains=trains)
        raised = _raised(changes, tried, replica)
        if trains and raised is not None:
            before = raised.before.batches[replica]
            having += (
                f", to which the monitor raised it from {before} in step {raised.step}"
            )
            less = f"leave out rebalance=True: then the split stays {raised.before}"
    report = OutOfMemory(f"{where} ran out of memory {having}", replica=replica)
    report.remedy = (
        f"{less}; gpubalance balance --margin 1GiB makes a plan that leaves more memory "
        "free"
    )
    row = memory_row(error)
    if row is not None:
        report.cause = row.cause
    return report


def _failing(error: BaseException, replicas: Replicas) -> int | None:
    """The number of the replica that the error is about, among those of all processes."""
    if replicas.cluster is not None:
        return replicas.cluster.rank  # a process of a cluster has one replica
    return failing_replica(str(error), replicas.names)


def _raised(
    changes: Sequence[SplitChange], tried: BatchSplit, replica: int
) -> SplitChange | None:
    """The change since which a device takes so much at a time, if there is one."""
    size = tried.micro_batches[replica]
    for change in reversed(changes):
        before, after = change.before.micro_batches, change.after.micro_batches
        if before[replica] < size <= after[replica]:
            return change
    return None


def stage_out_of_memory(
    result: Layers, devices: Sequence[Device], failed: TaskFailedError
) -> OutOfMemory:
    """Our error for a stage whose device holds less than it did, or whose model has grown."""
    message = f"{devices[failed.device].label} ran out of memory in {failed.doing}"
    for stage in result.stages:
        if stage.device == failed.device and stage.memory_peak_bytes is not None:
            peak = format_bytes(stage.memory_peak_bytes)
            message += f": it held {peak} when the model was cut"
    error = OutOfMemory(message, replica=failed.device)
    error.remedy = (
        "cut the model again: gpubalance layers --margin 1GiB keeps more memory free; "
        "a smaller --micro-batch needs less"
    )
    return error


def _less(
    devices: Sequence[Device],
    own: BatchSplit | None,
    tried: BatchSplit,
    replica: int,
    *,
    trains: bool,
) -> str:
    """What to type: the split's own batches, smaller ones, or half of that device's.

    Nobody knows what would fit.
    """
    if own is None or not trains:
        return (
            f"use a smaller batch_size, such as {max(1, tried.global_batch // 2)}, or "
            "a split with fewer samples on that device"
        )
    if tried.batches[replica] > own.batches[replica]:
        return (
            f"the split is for {own.global_batch} samples a step, but got "
            f"{tried.global_batch}: leave out batch_size, or give at most "
            f"{own.global_batch}"
        )
    if tried.micro_batches[replica] < 2:
        return "use a smaller model, or leave the device out"
    if len(hosts_of(devices)) > 1:  # only a plan knows the GPUs of several hosts
        return "gpubalance balance --accumulate auto plans micro-batches"
    gpus = [device.index for device in devices]
    batches = list(own.batches)
    parts = list(own.micro_batches)
    parts[replica] = -(-parts[replica] // 2)
    fewer = list(own.batches)
    fewer[replica] = -(-fewer[replica] // 2)
    return (
        f"use micro-batches, gpubalance.Split({gpus}, {batches}, "
        f"micro_batches={parts}), or a smaller batch on that device, "
        f"gpubalance.Split({gpus}, {fewer}); halve again if it still does not fit"
    )
