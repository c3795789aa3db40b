"""Results that were made here, kept under the user's state directory: later commands start from the
best of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from gpubalance.errors import BadInput, NothingFits
from gpubalance.jobs.keep.journal import content_key
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.results.probe import BatchLimit, DeviceProbe, Probe
from gpubalance.results.records import read_record
from gpubalance.results.run import Run, SoloBest
from gpubalance.settings.choices import DEFAULT_BATCH
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.state import delete_oldest, state_folder, sweep, write_whole
from gpubalance.workers.code import code_key

_KEPT = 100
ALL = float("inf")  # the `up_to` that only a probe without a limit reaches

Result = TypeVar("Result", Probe, Plan, Run)
Folder = Literal["probes", "runs", "balances"]


def identity(device: Device) -> tuple[object, ...]:
    """What is the same for a device whatever its index."""
    return device.uuid, device.memory_bytes, device.profile


def save(result: Probe | Run) -> Path | None:
    """Keeps a result instead of the oldest of its kind. Returns None if it can't be written."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    return _put(state_folder(f"{result.kind}s") / f"{stamp}-{os.getpid()}.json", result)


def _put(path: Path, result: Probe | Run | Plan) -> Path | None:
    try:
        sweep(path.parent)
        delete_oldest(path.parent, "*.json", _KEPT)
        write_whole(path, result.model_dump_json(indent=1))
    except OSError:
        return None
    return path


def saved(folder: Folder, kind: type[Result], pattern: str = "*.json") -> Iterator[Result]:
    """The results there that can be read, the latest first; `pattern` picks some by the names of
    their files.
    """
    paths = state_folder(folder).glob(pattern)
    for path in sorted(paths, key=lambda one: (one.stat().st_mtime, one), reverse=True):
        with suppress(BadInput):  # damaged
            yield read_record(path, kind)


def keep_balance(request: BalanceRequest, plan: Plan) -> None:
    """Keeps the result of a balance instead of an older one by the same probe, if there is room for
    it.

    A balance that has not measured several devices together is not kept: it knows no more than the
    probe.
    """
    if plan.sync_s is not None:
        name = _name(plan.probed, request.devices, request.settings, request.joint)
        _put(state_folder("balances") / name, plan)


def balance_by(
    probe: Probe, devices: Sequence[Device], joint: JointProfile | None = None
) -> Plan | None:
    """The result of the balance of exactly these devices that started from this probe, or None.

    With `joint` None, as a probe's file does not say what a joint run adds, it is the latest one
    whatever that was.
    """
    return next(saved("balances", Plan, _name(probe.created, devices, probe.settings, joint)), None)


def _name(
    probed: str, devices: Sequence[Device], settings: Settings, joint: JointProfile | None
) -> str:
    """The name of a balance's file; with `joint` None the pattern of those with any."""
    ending = "*" if joint is None else content_key(joint)
    return f"{content_key(probed, *devices, settings.alone)}-{ending}.json"


def best_joint_run(devices: Sequence[Device], model: Model, settings: Settings) -> Run | None:
    """The kept run with the most samples/s on exactly these devices, with this model and these
    settings, or None.
    """
    wanted = set(map(identity, devices))
    proofs = (plan.run for plan in saved("balances", Plan) if plan.run is not None)
    found = (
        run
        for run in chain(saved("runs", Run), proofs)
        if run.model.is_like(model)
        and run.settings.alone == settings.alone
        # In a balance's run batches lie on the devices.
        and (settings.data is None or run.pipeline is not None)
        and {identity(run.devices[one.device]) for one in run.replicas} == wanted
    )
    return max(found, key=lambda run: run.throughput.median, default=None)


def kept_probes() -> Iterator[Probe]:
    """The probes that can be read, the latest first."""
    return saved("probes", Probe)


def best_probe(
    devices: Sequence[Device], settings: Settings, *, up_to: float = 0, each: bool = False
) -> Probe | None:
    """The probe that measured all these devices to the end with these settings, or None: the latest
    without a limit.

    If --max-batch or --margin limited all of them, it is the one that looked furthest, if it looked
    up to the batch `up_to`. A probe of the user's own model or data counts if their files have not
    changed since. With `each` it must have measured every device itself, none by an equal one.
    """
    code, best, furthest = code_key(settings.model, settings.data), None, 0.0
    for probe in kept_probes():
        if probe.settings.alone != settings.alone or probe.code != code:
            continue
        found = [find_device(probe, device) for device in devices]
        if each and any(one is not None and one.same_as is not None for one in found):
            continue
        reach = min(_reach(probe, one) for one in found)
        if reach == ALL:
            return probe
        if reach >= up_to and reach > furthest:
            best, furthest = probe, reach
    return best


def kept_probe(request: BalanceRequest) -> Probe | None:
    """The probe that a balance may plan with, or None."""
    if request.fresh:
        return None
    return best_probe(
        request.devices, request.settings, up_to=request.probe.max_batch or ALL, each=request.each
    )


def probe_of(device: Device, settings: Settings) -> DeviceProbe | None:
    """What the best probe with these settings has of a device, or None."""
    probe = best_probe([device], settings)
    return find_device(probe, device) if probe else None


def sensible_batch(device: Device, settings: Settings) -> int:
    """The smallest batch within 5 % of the device's best by its probe; without one, 64."""
    found = probe_of(device, settings)
    return found.sensible.batch if found and found.sensible else DEFAULT_BATCH


def holds_nothing(one: DeviceProbe) -> bool:
    """Whether not even the smallest batch fits: its probe failed, but says all there is to know."""
    return one.batch_limit is not None and one.batch_limit.fits is None


def _reach(probe: Probe, one: DeviceProbe | None) -> float:
    """The largest batch that a device's probe looked at, to the end; 0 for none.

    It is `ALL` if the device, not an option, ended the search.
    """
    if one is None or not (one.complete or holds_nothing(one)):
        return 0.0
    limit = one.batch_limit
    if limit is None or limit.fits is None:
        return ALL
    if limit.fails is None:
        return probe.max_batch or ALL
    return limit.fits if _by_margin(limit) else ALL


def _by_margin(limit: BatchLimit) -> bool:
    """Whether memory that --margin kept free ended the search."""
    return any(trial.outcome == "margin" for trial in limit.trials if trial.batch == limit.fails)


def refuse_what_failed(
    devices: Sequence[Device], split: Shares, settings: Settings, again: str
) -> None:
    """Raises NothingFits for a share that failed in the best probe; `again` is the command that
    probes again.

    A joint run takes more memory than a device alone, so it does not hold such a share either.
    """
    probe = best_probe([devices[number] for number in split.used], settings)
    if probe is None:
        return
    for number in split.used:
        one, share = find_device(probe, devices[number]), split.micro_batches[number]
        limit = one.batch_limit if one else None
        if limit and limit.fails and limit.fails <= share and not _by_margin(limit):
            raise NothingFits(
                f"{devices[number].label} does not hold {share} samples at a time: in the "
                f"probe of {probe.created} "
                f"{limit.fails} failed and {limit.fits or 'nothing'} fit",
                remedy=f"give it less; if it has more memory now, probe again: {again}",
            )


def solo_bests(
    devices: Sequence[Device], split: Shares, settings: Settings
) -> tuple[SoloBest, ...] | None:
    """The solo best of each device that was asked for, by the best probe of them that looked up to
    the global batch.

    None without such a probe: devices that were only tried with less would seem to give more in the
    split than alone.
    """
    probe = best_probe(devices, settings, up_to=split.global_batch)
    return solo_bests_of(probe, devices, split) if probe else None


def solo_bests_of(
    probe: Probe, devices: Sequence[Device], split: Shares
) -> tuple[SoloBest, ...] | None:
    """The solo best of each device by that probe, with samples or without; None if it lacks one.

    A device that does not hold a single sample gives nothing alone and has no entry.
    """
    found = [(number, find_device(probe, device)) for number, device in enumerate(devices)]
    if any(one is None or (one.solo_best is None and not holds_nothing(one)) for _, one in found):
        return None
    return tuple(
        SoloBest(
            device=number,
            **one.solo_best.model_dump(),
            samples_per_joule=one.samples_per_joule,
            at_global_batch=_throughput(one, split.global_batch),
        )
        for number, one in found
        if one and one.solo_best
    )


def _throughput(one: DeviceProbe, batch: int) -> float | None:
    """Samples per second of a device alone at that batch, by its step-time model; None for more
    than it holds.
    """
    model, limit = one.step_time_model, one.batch_limit
    if model is None or limit is None or limit.fits is None or batch > limit.fits:
        return None
    return batch / model.planned.step_time_s(batch)


def find_device(probe: Probe, device: Device) -> DeviceProbe | None:
    """The probe's entry for a device, whatever index the device had then; None if it has none."""
    wanted = identity(device)
    return next(
        (one for one in probe.probes if identity(probe.devices[one.device]) == wanted), None
    )
