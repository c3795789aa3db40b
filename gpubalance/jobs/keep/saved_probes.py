"""Probes that were made here, kept under the user's state directory: plans start from the latest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubalance.jobs.keep import saved
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.run import SoloBest
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.workers.code import code_key

_FOLDER = "probes"
ALL = float("inf")  # the `up_to` that only a probe without a bound reaches


def save(probe: Probe) -> Path | None:
    """Keeps a probe, and deletes the oldest ones. Returns None if it can't be written."""
    return saved.save(_FOLDER, probe)


def latest(
    devices: Sequence[Device], settings: Settings, *, up_to: float = 0, of_other_code: bool = False
) -> Probe | None:
    """The latest probe that measured all these devices to the end with these settings, or None.

    A probe bounded by --max-batch counts only if its bound is at least `up_to`. A probe of the user's own model or data
    counts if their files have not changed since; with `of_other_code`, only if they have.
    """
    code = code_key(settings.model, settings.data)
    for probe in kept_probes():
        found = [find_device(probe, device) for device in devices]
        if (
            same_settings(probe.settings, settings)
            and (probe.code != code) == of_other_code
            and _reaches(probe, up_to)
            and all(one is not None and (one.complete or holds_nothing(one)) for one in found)
        ):
            return probe
    return None


def holds_nothing(one: DeviceProbe) -> bool:
    """Whether not even the smallest batch fits: its probe failed, but says all there is to know."""
    return one.batch_limit is not None and one.batch_limit.fits is None


def _reaches(probe: Probe, batch: float) -> bool:
    """Whether a probe looked up to that batch; one without a bound looked as far as the device goes."""
    return probe.max_batch is None or batch <= probe.max_batch


def solo_bests(devices: Sequence[Device], used: Sequence[int], settings: Settings) -> tuple[SoloBest, ...] | None:
    """The solo best of each used device, by the latest probe of them all; None without such a probe.

    `used` has their places among the devices.
    """
    probe = latest([devices[number] for number in used], settings)
    return solo_bests_of(probe, devices, used) if probe else None


def solo_bests_of(probe: Probe, devices: Sequence[Device], used: Sequence[int]) -> tuple[SoloBest, ...] | None:
    """The solo best of each used device by that probe; None if it lacks one."""
    found = [(number, find_device(probe, devices[number])) for number in used]
    bests = [
        SoloBest(device=number, **one.solo_best.model_dump(), samples_per_joule=one.samples_per_joule)
        for number, one in found
        if one and one.solo_best
    ]
    return tuple(bests) if len(bests) == len(used) else None


def find_device(probe: Probe, device: Device) -> DeviceProbe | None:
    """The probe's entry for a device, whatever index the device had then; None if it has none."""
    for one in probe.probes:
        there = probe.devices[one.device]
        if (there.uuid, there.memory_bytes, there.profile) == (device.uuid, device.memory_bytes, device.profile):
            return one
    return None


def same_settings(settings: Settings, others: Settings) -> bool:
    """Whether settings are equal except for the all-reduce, which a device alone does not do."""
    return settings.model_copy(update={"all_reduce": others.all_reduce}) == others


def kept_probes() -> Iterator[Probe]:
    """The probes that can be read, the latest first."""
    return saved.saved(_FOLDER, Probe)
