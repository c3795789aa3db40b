"""The probes that are kept here, and what they say of devices: later commands start from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubalance.errors import NothingFits
from gpubalance.jobs.keep.saved import identity, saved
from gpubalance.results.probe import BatchLimit, DeviceProbe, Probe
from gpubalance.results.run import SoloBest
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import DEFAULT_BATCH
from gpubalance.settings.code import code_key
from gpubalance.settings.device import Device
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings

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
    """The probe that a balance may plan with, or None."""
    if request.fresh:
        return None
    max_batch = request.probe.max_batch
    return best_probe(
        request.devices,
        request.settings,
        up_to=max_batch or ALL,
        each=request.each,
        past_plateau=max_batch is not None,
    )


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
