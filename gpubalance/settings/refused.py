"""What devices can't do together, which is known before any of them is touched."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import UsageError
from gpubalance.settings.choices import AllReduce
from gpubalance.settings.device import Device, hosts_of


def refuse_together(
    devices: Sequence[Device], all_reduce: AllReduce, named: Sequence[Device] = ()
) -> None:
    """Raises UsageError for MIG slices together, and for an all-reduce that these devices can't do.

    `named` are those that were asked for, if some of them get no samples: what was meant for
    several hosts also trains where the best split leaves all but one host out.
    """
    if len(devices) > 1 and any(device.uuid.startswith("MIG-") for device in devices):
        raise UsageError(
            "CUDA shows a process only one MIG slice: slices can't train together",
            remedy="name one slice",
        )
    if devices[0].simulated and all_reduce == "nccl":
        raise UsageError("--all-reduce nccl needs GPUs", remedy="use auto")
    hosts = hosts_of(devices)
    if len(hosts) > 1 and all_reduce not in ("auto", "nccl", "ring"):
        names = ", ".join(host for host in hosts if host)
        raise UsageError(
            f"--all-reduce {all_reduce} works on one host only, and the devices are on {names}",
            remedy="use auto, nccl or ring",
        )
    if len(hosts_of(named or devices)) == 1 and all_reduce == "ring":
        raise UsageError(
            "--all-reduce ring is for several hosts, and the devices are on one",
            remedy="use auto",
        )
    # TensorFlow sums two groups of n // 2 devices, and so drops what the last device has:
    # `aggregate_gradients_using_hierarchical_copy` in its cross_device_utils.py.
    if all_reduce == "hierarchical" and len(devices) > 1 and len(devices) % 2:
        how_many = f"there are {len(devices)}"
        if len(named) > len(devices):
            how_many = f"{len(devices)} of {len(named)} have samples in this split"
        raise UsageError(
            "--all-reduce hierarchical drops the gradients of one device if their number is odd, "
            f"and {how_many}",
            remedy="use one-device",
        )
