"""`report`: reads results from files, and finds the probe that each is based on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from gpubalance.jobs.keep.probes import find_device, kept_probes
from gpubalance.results.plan import Plan
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.records import Reported, read_reported
from gpubalance.results.run import Run, SoloBest
from gpubalance.results.subject import ReportSubject

Found = tuple[Probe, str]


def read_subjects(paths: Sequence[Path]) -> tuple[ReportSubject, ...]:
    """Reads results, in the order of their files. Raises BadInput for a file that is not a whole
    result.

    A plan or a run is shown with the probe that it is based on, from one of the files or from those
    kept here.
    """
    results = [read_reported(path) for path in paths]
    each = [*zip(paths, results, strict=True)]
    given = [(one, path.name) for path, one in each if isinstance(one, Probe)]
    return tuple(_subject(path, result, given) for path, result in each)


def _subject(path: Path, result: Reported, given: Sequence[Found]) -> ReportSubject:
    found: Found | None = (result, "this probe") if isinstance(result, Probe) else None
    if isinstance(result, Plan | Run):
        found = _its_probe(result, given)
    if found is None:
        return ReportSubject(path.name, result, (None,) * len(result.devices))
    probe, where = found
    probes = tuple(find_device(probe, device) for device in result.devices)
    return ReportSubject(path.name, result, probes, where)


def _its_probe(result: Plan | Run, given: Sequence[Found]) -> Found | None:
    """The probe that the result is based on, from the files given or kept here; else a given probe
    of its devices.
    """
    kept = ((probe, f"the probe of {probe.created} that is kept here") for probe in kept_probes())
    for probe, where in chain(given, kept):
        if _has(probe, result) and _is_its_own(probe, result):
            return probe, where
    for probe, name in given:
        if _has(probe, result) and probe.settings.alone == result.settings.alone:
            return probe, f"{name}, which is not the probe that this {result.kind} was made with"
    return None


def _has(probe: Probe, result: Plan | Run) -> bool:
    """Whether every device with samples is in the probe."""
    return all(find_device(probe, result.devices[number]) for number in result.split.used)


def _is_its_own(probe: Probe, result: Plan | Run) -> bool:
    """Whether this probe has the same solo best, for each one that the run was compared with; or
    made the plan.
    """
    if isinstance(result, Plan):
        return probe.created == result.probed
    bests = result.baselines.solo_best or ()
    here = [(best, find_device(probe, result.devices[best.device])) for best in bests]
    return result.baselines.solo_best is not None and all(_agrees(one, best) for best, one in here)


def _agrees(one: DeviceProbe | None, best: SoloBest) -> bool:
    here = one.solo_best if one else None
    if here is None or here.batch != best.batch:
        return False
    return math.isclose(here.throughput, best.throughput, rel_tol=1e-6)
