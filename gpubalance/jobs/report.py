"""`report`: reads results, finds the probe that each is based on, and makes copies to share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpubalance.devices.profile import load_profile, shipped_profiles
from gpubalance.guide import names, read_chapter
from gpubalance.jobs.saved import find_device, kept_probes
from gpubalance.remedies import known_errors
from gpubalance.results.plan import Plan
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.results.records import Reported, read_reported
from gpubalance.results.run import Run, SoloBest
from gpubalance.results.sharing import without_names
from gpubalance.results.subject import ReportSubject
from gpubalance.results.warnings import codes_and_texts

_WORD = re.compile(r"--[a-z-]+|[A-Za-zα-ω]+(?:['-][A-Za-z]+)*(?:/[a-z])?(?!\w)")
# A probe, and where it is from.
Source = tuple[Probe, str]


def read_subjects(paths: Sequence[Path]) -> tuple[ReportSubject, ...]:
    """Reads results, in the order of their files.

    A plan or a run is shown with the probe that it is based on, from one of the files or from those
    kept here. Raises BadInput for a file that is not a whole result.
    """
    results = [read_reported(path) for path in paths]
    probes = []
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, Probe):
            probes.append((result, path.name))
    pairs = zip(paths, results, strict=True)
    return tuple(_subject(path, result, probes) for path, result in pairs)


def _subject(path: Path, result: Reported, probes: Sequence[Source]) -> ReportSubject:
    source: Source | None = None
    if isinstance(result, Probe):
        source = (result, "this probe")
    elif isinstance(result, Plan | Run):
        source = _its_probe(result, probes)
    if source is None:
        return ReportSubject(path.name, result, (None,) * len(result.devices))
    probe, where = source
    entries = tuple(find_device(probe, device) for device in result.devices)
    return ReportSubject(path.name, result, entries, where)


def _its_probe(result: Plan | Run, probes: Sequence[Source]) -> Source | None:
    """The probe that the result is based on, from the files or kept here.

    Else a probe of its devices from the files.
    """
    for probe, name in probes:
        if _has(probe, result) and _is_its_own(probe, result):
            return probe, name
    for probe in kept_probes():
        if _has(probe, result) and _is_its_own(probe, result):
            return probe, f"the probe of {probe.created} that is kept here"
    for probe, name in probes:
        if _has(probe, result) and probe.settings.alone == result.settings.alone:
            return (
                probe,
                f"{name}, which is not the probe that this {result.kind} was made with",
            )
    return None


def _has(probe: Probe, result: Plan | Run) -> bool:
    """Whether every device with samples is in the probe."""
    return all(
        find_device(probe, result.devices[number]) for number in result.split.used
    )


def _is_its_own(probe: Probe, result: Plan | Run) -> bool:
    """Whether this probe made the plan, or has each solo best that the run was compared with."""
    if isinstance(result, Plan):
        return probe.created == result.probed
    bests = result.baselines.solo_best
    if not bests:  # what holds for none of them would hold for any probe
        return False
    for best in bests:
        entry = find_device(probe, result.devices[best.device])
        if not _agrees(entry, best):
            return False
    return True


def _agrees(entry: DeviceProbe | None, best: SoloBest) -> bool:
    own = entry.solo_best if entry else None
    if own is None or own.batch != best.batch:
        return False
    return math.isclose(own.throughput, best.throughput, rel_tol=1e-6)


def shareable(path: Path) -> tuple[Reported, dict[str, int]]:
    """The result of a file without names, and how much of each kind was taken out.

    A word that gpubalance itself does not use may be a name. Raises BadInput for a file that is no
    result.
    """
    return without_names(read_reported(path), set(_words()), set(_products()))


def _words() -> Iterator[str]:
    """Those of the guide and of warnings, and the codes of errors."""
    yield from known_errors()
    chapters = [read_chapter(name).text for name in names()]
    for text in (*chapters, *codes_and_texts()):
        yield text  # which may be a code
        for word in _WORD.findall(text):
            yield word
            yield word.lower()


def _products() -> Iterator[str]:
    """The devices in the profiles that come with gpubalance."""
    for path in shipped_profiles().values():
        for device in load_profile(path).device:
            yield device.name
