"""Results that were made here, kept under the user's state directory for later commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from gpubalance.errors import BadInput
from gpubalance.jobs.keep.journal import content_key
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.records import read_record
from gpubalance.results.run import Run
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.state import delete_oldest, state_folder, sweep, write_whole

_KEPT = 100

Result = TypeVar("Result", Probe, Plan, Run)
_FOLDERS = {Probe: "probes", Run: "runs", Plan: "balances"}


def identity(device: Device) -> tuple[object, ...]:
    """What is the same for a device whatever its index."""
    return device.uuid, device.memory_bytes, device.profile


def save(result: Probe | Run) -> Path | None:
    """Keeps a result instead of the oldest of its kind. Returns None if it can't be written."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return _put(f"{stamp}-{os.getpid()}.json", result)


def _put(name: str, result: Probe | Run | Plan) -> Path | None:
    folder = state_folder(_FOLDERS[type(result)])
    path = folder / name
    try:
        sweep(folder)
        delete_oldest(folder, "*.json", _KEPT)
        write_whole(path, result.model_dump_json(indent=1))
    except OSError:
        return None
    return path


def saved(kind: type[Result], pattern: str = "*.json") -> Iterator[Result]:
    """The kept results of that kind that can be read, the latest first.

    `pattern` picks some by the names of their files.
    """
    paths = state_folder(_FOLDERS[kind]).glob(pattern)
    by_age = sorted(paths, key=lambda path: (path.stat().st_mtime, path))
    for path in reversed(by_age):
        with suppress(BadInput):  # damaged
            yield read_record(path, kind)


def keep_balance(request: BalanceRequest, plan: Plan) -> None:
    """Keeps the result of a balance instead of an older one by the same probe, if there is room.

    A balance that has not measured several devices together is not kept: it knows no more than the
    probe.
    """
    if plan.sync_s is not None:
        name = _name(plan.probed, request.devices, request.settings, request.joint)
        _put(name, plan)


def balance_by(
    probe: Probe, devices: Sequence[Device], joint: JointProfile | None
) -> Plan | None:
    """The result of the balance of exactly these devices that started from this probe, or None.

    With `joint` None, as a probe's file does not say what a joint run adds, it is the latest one
    whatever that was.
    """
    name = _name(probe.created, devices, probe.settings, joint)
    return next(saved(Plan, name), None)


def _name(
    probed: str,
    devices: Sequence[Device],
    settings: Settings,
    joint: JointProfile | None,
) -> str:
    """The name of a balance's file; with `joint` None the pattern of those with any."""
    ending = "*" if joint is None else content_key(joint)
    return f"{content_key(probed, *devices, settings.alone)}-{ending}.json"


def best_joint_run(
    devices: Sequence[Device], model: Model, settings: Settings
) -> Run | None:
    """The kept run with the most samples/s on exactly these devices, or None.

    With this model and these settings.
    """
    wanted = {identity(device) for device in devices}
    runs = list(saved(Run))
    for plan in saved(Plan):
        if plan.run is not None:
            runs.append(plan.run)
    same_runs = []
    for run in runs:
        used = {identity(run.devices[replica.device]) for replica in run.replicas}
        # In a balance's run batches lie on the devices.
        has_data = settings.data is None or run.pipeline is not None
        same_work = run.model.is_like(model) and run.settings.alone == settings.alone
        if used == wanted and same_work and has_data:
            same_runs.append(run)
    return max(same_runs, key=lambda run: run.throughput.median, default=None)
