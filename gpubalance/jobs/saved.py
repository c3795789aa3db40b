"""Results kept here for later commands: plans, probes, and what the parity check found."""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.journal import Journal, content_key
from gpubalance.results.combine_rules import CombineRules
from gpubalance.results.common import Model
from gpubalance.results.plan import Plan
from gpubalance.results.probe import BatchLimit, DeviceProbe, Probe
from gpubalance.results.records import read_record
from gpubalance.results.run import Run, SoloBest
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import DEFAULT_BATCH
from gpubalance.settings.code import code_key
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
    by_age = sorted(paths, key=lambda path: (_changed_s(path), path))
    for path in reversed(by_age):
        # Damaged, or deleted meanwhile: another command keeps its result and deletes the oldest.
        with suppress(BadInput, UsageError):
            yield read_record(path, kind)


def _changed_s(path: Path) -> float:
    """When a file was last changed; 0 if it is gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


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


class KeptRules:
    """Hands what one worker has found to the next ones, and keeps it in the command's journal.

    Of workers that begin at the same time one checks the model, and the others wait for it. What
    could not be tried, as for want of memory, is tried again by the next worker.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rules = journal.load_all(CombineRules)
        self._checking = defaultdict[str, threading.Lock](threading.Lock)

    def checking(self, settings: Settings) -> AbstractContextManager[Any]:
        """Within it no other worker checks the model in these settings.

        A model without a user's code is not checked.
        """
        return (
            self._checking[_key(settings)] if settings.model_is_code else nullcontext()
        )

    def of(self, settings: Settings) -> CombineRules | None:
        """That of the model in these settings, if it was checked."""
        return self._rules.get(_key(settings))

    def note(self, settings: Settings, combine_rules: CombineRules) -> None:
        """Takes what a worker has found, and keeps what is new."""
        key = _key(settings)
        if key not in self._rules and (combine_rules.step or combine_rules.refused):
            self._rules[key] = combine_rules
            self._journal.add(key, combine_rules, helps=False)


def _key(settings: Settings) -> str:
    """What the check depends on: not how gradients are summed, nor XLA."""
    return content_key(settings.model, settings.data, settings.precision)


ALL = math.inf  # the `up_to` that only a probe without a limit reaches


def kept_probes() -> Iterator[Probe]:
    """The probes that can be read, the latest first."""
    return saved(Probe)


def find_device(probe: Probe, device: Device) -> DeviceProbe | None:
    """The probe's entry for a device, whatever index the device had then; None if it has none."""
    wanted = identity(device)
    for entry in probe.probes:
        if identity(probe.devices[entry.device]) == wanted:
            return entry
    return None


def holds_nothing(entry: DeviceProbe) -> bool:
    """Whether not even the smallest batch fits: its probe failed, but says all there is to know."""
    return entry.batch_limit is not None and entry.batch_limit.fits is None


def best_probe(
    devices: Sequence[Device],
    settings: Settings,
    *,
    up_to: float = 0,
    each: bool = False,
    past_plateau: bool = False,
) -> Probe | None:
    """The latest probe of all these devices with these settings that had no limit, or None.

    If --max-batch or --margin limited all of them, it is the one that looked furthest, if it looked
    up to the batch `up_to`. A probe of the user's own model or data counts if their files have not
    changed since. With `each` it must have measured every device itself, none by an equal one.
    A probe that ended where throughput stopped rising had no limit, as larger batches give no more;
    if batches `past_plateau` are asked for, it looked no further than it measured.
    """
    code = code_key(settings.model, settings.data)
    best = None
    furthest = 0.0
    for probe in kept_probes():
        if probe.settings.alone != settings.alone or probe.code != code:
            continue
        entries = [find_device(probe, device) for device in devices]
        if each and any(
            entry is not None and entry.same_as is not None for entry in entries
        ):
            continue
        reach = min(_reach(probe, entry, past_plateau) for entry in entries)
        if reach == ALL:
            return probe
        if reach >= up_to and reach > furthest:
            best = probe
            furthest = reach
    return best


def kept_probe(request: BalanceRequest) -> Probe | None:
    """The probe that a balance may plan with, or None.

    One that says that no device holds anything leaves nothing to plan: another may find more, as
    other programs may have held their memory.
    """
    if request.fresh:
        return None
    max_batch = request.probe.max_batch
    probe = best_probe(
        request.devices,
        request.settings,
        up_to=max_batch or ALL,
        each=request.each,
        past_plateau=max_batch is not None,
    )
    if probe is None:
        return None
    entries = [find_device(probe, device) for device in request.devices]
    if all(entry is not None and holds_nothing(entry) for entry in entries):
        return None
    return probe


def probe_of(device: Device, settings: Settings) -> DeviceProbe | None:
    """What the best probe with these settings has of a device, or None."""
    probe = best_probe([device], settings)
    if probe is None:
        return None
    return find_device(probe, device)


def sensible_batch(device: Device, settings: Settings) -> int:
    """The smallest batch within 5 % of the device's best by its probe; without one, 64."""
    entry = probe_of(device, settings)
    if entry is None or entry.sensible is None:
        return DEFAULT_BATCH
    return entry.sensible.batch


def _reach(probe: Probe, entry: DeviceProbe | None, past_plateau: bool) -> float:
    """The largest batch that a device's probe looked at, to the end; 0 for none.

    It is `ALL` if the device, not an option, ended the search: its memory, or its throughput,
    unless batches `past_plateau` are asked for.
    """
    if entry is None:
        return 0.0
    if holds_nothing(entry):
        return ALL
    if not entry.complete:
        return 0.0
    limit = entry.batch_limit
    if limit is None or limit.fits is None:
        return ALL
    if limit.plateau is not None:
        return limit.fits if past_plateau else ALL
    if limit.fails is None:
        return probe.max_batch or ALL
    if _by_margin(limit):
        return limit.fits
    return ALL


def _by_margin(limit: BatchLimit) -> bool:
    """Whether memory that --margin kept free ended the search."""
    return any(
        trial.outcome == "margin"
        for trial in limit.trials
        if trial.batch == limit.fails
    )


def refuse_what_failed(
    devices: Sequence[Device], split: BatchSplit, settings: Settings, probe_again: str
) -> None:
    """Raises NothingFits for a share that failed in the best probe.

    A joint run takes more memory than a device alone, so it does not hold such a share either.
    `probe_again` is the command that probes again.
    """
    probe = best_probe([devices[number] for number in split.used], settings)
    if probe is None:
        return
    for number in split.used:
        device = devices[number]
        share = split.micro_batches[number]
        entry = find_device(probe, device)
        if entry is None:
            continue
        limit = entry.batch_limit
        if limit and limit.fails and limit.fails <= share and not _by_margin(limit):
            raise NothingFits(
                f"{device.label} has too little memory for {share} samples at once: "
                f"in the probe of {probe.created} {limit.fails} failed and "
                f"{limit.fits or 'nothing'} fit",
                remedy="use a smaller batch there; if more memory is free now, probe "
                f"again: {probe_again}",
            )


def solo_bests(
    devices: Sequence[Device], split: BatchSplit, settings: Settings
) -> tuple[SoloBest, ...] | None:
    """The solo best of each device, by the best probe of them that looked up to the global batch.

    None without such a probe: devices that were only tried with less would seem to give more in the
    split than alone.
    """
    probe = best_probe(devices, settings, up_to=split.global_batch)
    if probe is None:
        return None
    return solo_bests_of(probe, devices, split)


def solo_bests_of(
    probe: Probe, devices: Sequence[Device], split: BatchSplit
) -> tuple[SoloBest, ...] | None:
    """The solo best of each device by that probe, with samples or without; None if it lacks one.

    A device that does not hold a single sample gives nothing alone and has no entry.
    """
    bests = []
    for number, device in enumerate(devices):
        entry = find_device(probe, device)
        if entry is None:
            return None
        best = solo_best_of(entry, number)
        if best is not None:
            at_global_batch = _throughput(entry, split.global_batch)
            bests.append(best.model_copy(update={"at_global_batch": at_global_batch}))
        elif not holds_nothing(entry):
            return None
    return tuple(bests)


def solo_best_of(entry: DeviceProbe, number: int) -> SoloBest | None:
    """The record of a device's best alone, with XLA if that is faster; None if it has none."""
    if entry.solo_best is None or entry.alone is None:
        return None
    samples_per_joule = entry.samples_per_joule
    if (entry.xla_ratio or 0) > 1:
        samples_per_joule = None
    return SoloBest(
        device=number,
        batch=entry.solo_best.batch,
        throughput=entry.alone,
        samples_per_joule=samples_per_joule,
        xla_ratio=entry.xla_ratio,
    )


def _throughput(entry: DeviceProbe, batch: int) -> float | None:
    """Samples per second of a device alone at that batch, by its step-time model.

    None for more than it holds.
    """
    model = entry.step_time_model
    limit = entry.batch_limit
    if model is None or limit is None or limit.fits is None or batch > limit.fits:
        return None
    return batch / model.planned.measured_s(batch) * max(1.0, entry.xla_ratio or 1.0)
