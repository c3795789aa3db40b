"""`report`: reads results from files, and finds the probe that each is based on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubalance.jobs.keep.saved_probes import find_device, kept_probes
from gpubalance.results.independent import Independent
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.records import AnyResult, read_result
from gpubalance.results.run import Run
from gpubalance.results.subject import Subject

Found = tuple[Probe, str]


def read_subjects(paths: Sequence[Path]) -> tuple[Subject, ...]:
    """Reads results, in the order of their files. Raises BadInput for a file that is not a whole result.

    A plan or a run is shown with the probe that it is based on, from one of the files or from those kept here.
    """
    results = [read_result(path) for path in paths]
    given = [(one, path.name) for one, path in zip(results, paths, strict=True) if isinstance(one, Probe)]
    return tuple(_subject(path, result, given) for path, result in zip(paths, results, strict=True))


def _subject(path: Path, result: AnyResult, given: Sequence[Found]) -> Subject:
    if isinstance(result, Probe):
        by_device = {one.device: one for one in result.probes}
        probes = tuple(by_device.get(number) for number in range(len(result.devices)))
        return Subject(path.name, result, probes, "this probe")
    found = None if isinstance(result, Independent | Layers) else _its_probe(result, given)
    if found is None or isinstance(result, Independent | Layers):
        return Subject(path.name, result, (None,) * len(result.devices))
    probe, where = found
    return Subject(path.name, result, _of_devices(probe, result), where)


def _its_probe(result: Plan | Run, given: Sequence[Found]) -> Found | None:
    """The probe that the result is based on, from the files given or kept here; else a given probe of its devices."""
    kept = ((probe, f"the probe of {probe.created} that is kept here") for probe in kept_probes())
    for candidates in (given, kept):
        for probe, where in candidates:
            if _has(probe, result) and _is_its_own(probe, result):
                return probe, where
    for probe, name in given:
        if _has(probe, result) and probe.settings.alone == result.settings.alone:
            return probe, f"{name}, which is not the probe that this {result.kind} was made with"
    return None


def _of_devices(probe: Probe, result: Plan | Run) -> tuple[DeviceProbe | None, ...]:
    return tuple(find_device(probe, device) for device in result.devices)


def _has(probe: Probe, result: Plan | Run) -> bool:
    """Whether every device with samples is in the probe."""
    return all(one is not None for one, batch in zip(_of_devices(probe, result), result.batches, strict=True) if batch)


def _is_its_own(probe: Probe, result: Plan | Run) -> bool:
    if isinstance(result, Plan):
        return probe.created == result.probed
    return result.baselines.solo_best is not None and all(_agreements(probe, result))


def _agreements(probe: Probe, run: Run) -> Iterator[bool]:
    """Whether this probe has the same solo best, for each one that the run was compared with."""
    found = _of_devices(probe, run)
    for best in run.baselines.solo_best or ():
        one = found[best.device]
        here = one.solo_best if one is not None else None
        yield (
            here is not None
            and here.batch == best.batch
            and math.isclose(here.throughput, best.throughput, rel_tol=1e-6)
        )
