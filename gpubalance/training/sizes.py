"""Checks what a script gives for a split, with an error for each kind that can't be meant."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpubalance.errors import EnvironmentFault, PlanMismatch, UsageError
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.shares import Shares

_WHOLE = "give whole numbers: 4 and 3 instead of 0.57 and 0.43"


def shares_of(sizes: Sequence[int], micro_batches: Sequence[int], devices: int, *, what: str = "batches") -> Shares:
    """The shares of these sizes, which errors call `what`: batches or ratios. Raises UsageError, with what to give."""
    for name, given in ((what, sizes), ("micro-batches", micro_batches)):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise UsageError(
                f"{name} are a list, one for each device, not {given!r}",
                remedy=f"{name.replace('-', '_')}=[{', '.join(['…'] * devices)}] for {_devices(devices)}",
            )
        wrong = [size for size in given if isinstance(size, bool) or not isinstance(size, int)]
        if wrong:
            unit = "" if what == "ratios" else " of samples"
            raise UsageError(f"{name} are whole numbers{unit}, not {wrong[0]!r}", remedy=_WHOLE)
    if len(sizes) != devices:
        raise UsageError(_count(sizes, what, devices), remedy="give one for every device; 0 leaves a device out")
    if micro_batches and len(micro_batches) != devices:
        raise UsageError(
            _count(micro_batches, "micro-batches", devices),
            remedy="give one for every device: its whole batch, where it takes that in one piece",
        )
    if min(sizes) < 0:
        raise UsageError(f"{what} can't be below 0, as {min(sizes)} is", remedy="0 leaves a device out")
    if not any(sizes):
        raise UsageError(f"all {what} are 0, so no device would train", remedy="give at least one device more than 0")
    for batch, micro in zip(sizes, micro_batches or sizes, strict=True):
        if not min(1, batch) <= micro <= batch:
            raise UsageError(
                f"a device with a batch of {batch} can't take it in micro-batches of {micro}",
                remedy=f"give from 1 to {batch}; {batch} takes it in one piece" if batch else "give 0, as its batch is",
            )
    return Shares(tuple(sizes), tuple(micro_batches))


def check_hosts(devices: Sequence[Device], cluster: Cluster | None) -> None:
    """Raises UsageError for several hosts without a process for each device, PlanMismatch for too many or few."""
    hosts, labels = hosts_of(devices), ", ".join(device.label for device in devices)
    if len(hosts) > 1 and cluster is None:
        raise UsageError(
            f"the split is of devices on several hosts, {labels}, and this process is not one of theirs",
            remedy="gpubalance launch PLAN SCRIPT starts a process for each of them",
        )
    if cluster is not None and len(cluster.addresses) != len(devices):
        raise PlanMismatch(
            f"TF_CONFIG has {len(cluster.addresses)} workers, and the split {len(devices)} devices: {labels}",
            remedy="start one process a device, in the order of the plan: gpubalance launch PLAN SCRIPT does",
        )


def check_monitor(shares: Shares, every: Any, noise: Any, *, rebalance: bool) -> None:
    """Raises UsageError for what a monitor of such a split can't do, EnvironmentFault if it can't write its file."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise UsageError(f"a monitor can't stamp every {every!r} steps", remedy="every=1 stamps each of them")
    if rebalance and shares.accumulates:
        raise UsageError("a split with micro-batches can't be rebalanced", remedy="gpubalance balance makes another")
    if noise and not isinstance(noise, bool | str | Path):
        raise UsageError(f"noise is True, False or a file's name, not {noise!r}", remedy="noise='noise.json'")
    if noise and sum(shares.counts) < 2:
        raise UsageError(
            "the noise scale needs two parts of a batch or more, and this one is in one piece on one device",
            remedy=f"take it in two: micro_batches={[-(-shares.global_batch // 2)]}",
        )
    if isinstance(noise, str | Path) and noise:
        _check_writable(Path(noise))


def _check_writable(path: Path) -> None:
    """Raises EnvironmentFault at once for a file that could not be written after the first epoch."""
    if path.is_dir():
        raise EnvironmentFault(f"noise={path} is a folder", remedy=f"give a file's name: {path / 'noise.json'}")
    folder = path.resolve().parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        remedy = f"mkdir -p {folder}" if isinstance(error, FileNotFoundError) else "give another file"
        raise EnvironmentFault(f"can't write noise={path}: {error.strerror}", remedy=remedy) from None


def _count(given: Sequence[int], what: str, devices: int) -> str:
    """`1 batch for 2 devices`."""
    name = what if len(given) != 1 else {"ratios": "ratio"}.get(what, what.removesuffix("es"))
    return f"{len(given)} {name} for {_devices(devices)}"


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"
