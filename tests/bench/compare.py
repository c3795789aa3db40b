"""How often `compare` calls two equal runs different, and how often it finds a true 3 %."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

from gpubalance.numbers.ratio import ratio
from gpubalance.results.comparison import Against, Comparison
from gpubalance.results.run import Run
from gpubalance.settings.requests import Measuring
from tests.bench import intervals
from tests.bench.measured import measured
from tests.bench.wanted import Share, Wanted, judged_shares
from tests.cli.program import ROOT, gpubalance
from tests.jobs.drawn import drawn_run, noisy_devices

COMPARISONS = 200
NOISE = 0.02
SLOWER = 1.03
_REAL_RUNS = 8
_REAL_LONGER = 5.0  # so that other work on the machine counts for less
_SPLITS = {"gtx1080ti-gtx1080": (820, 568), "quick-pair": (120, 80)}
_SHORT = Measuring(windows=3, duration_s=3.0, baseline="none")


def main() -> Iterator[str]:
    yield f"comparisons of drawn runs, {NOISE:.0%} noise; called different: of the same ({_WANTED[0]}), of one"
    yield f"{SLOWER - 1:.0%} slower ({_WANTED[1]}); {COMPARISONS} a row, and more until that is decided"
    for name, correlation, measuring in _CASES:
        of = partial(pairs, name, correlation=correlation, measuring=measuring)
        own = judged_shares(lambda number, of=of: _shares(of(number=number)), _WANTED, _MOST)  # type: ignore[misc]
        yield f"{name}, {'--duration 3' if measuring else 'default'}, correlation {correlation}: {', '.join(own)}"
    for between in _BETWEEN:
        same, _ = pairs("gtx1080ti-gtx1080", between=between)
        part = called_part(same)
        yield f"runs of the same that differ by {between:.1%} (standard deviation) from run to run: {part:.1%}"
    yield from intervals.main()
    yield from _real()


def _shares(drawn: tuple[list[tuple[Run, Run]], ...]) -> list[Share]:
    return [Share(sum(called_different(a, b) for a, b in found), len(found)) for found in drawn]


_WANTED = (Wanted(0.05, at_most=True), Wanted(0.9))
_MOST = 8  # times COMPARISONS
_BETWEEN = (0.005, 0.01)  # which no run's own interval includes
_CASES: tuple[tuple[str, float, Measuring | None], ...] = tuple(
    (name, correlation, measuring)
    for name in _SPLITS
    for measuring in (None, _SHORT)
    for correlation in (0.0, 0.5, 0.9)
)


def pairs(
    name: str,
    *,
    correlation: float = 0.0,
    between: float = 0.0,
    measuring: Measuring | None = None,
    count: int = COMPARISONS,
    number: int = 0,
) -> tuple[list[tuple[Run, Run]], list[tuple[Run, Run]]]:
    """Pairs of runs of one profile, and pairs whose second run is of a profile that is 3 % slower.

    Each run as a whole is off by `between`, a relative standard deviation. Each `number` gives other runs.
    """

    def run(seed: int, slower: float = 1.0) -> Run:
        off = Random(f"{name} {seed}").gauss(1.0, between)
        devices, joint = noisy_devices(ROOT / "configs" / f"{name}.toml", NOISE, slower * off)
        return drawn_run(devices, joint, _SPLITS[name], seed=seed, correlation=correlation, measuring=measuring)

    runs = [(run(3 * n), run(3 * n + 1), run(3 * n + 2, SLOWER)) for n in range(number * count, (number + 1) * count)]
    return [(a, b) for a, b, _ in runs], [(a, c) for a, _, c in runs]


def called_part(found: Sequence[tuple[Run, Run]]) -> float:
    """The fraction of pairs that are called different."""
    return sum(called_different(a, b) for a, b in found) / len(found)


def called_different(baseline: Run, other: Run) -> bool:
    """Whether `compare` calls the runs different."""
    value = other.throughput.median / baseline.throughput.median
    return ratio(value, other.step_time_s.samples, baseline.step_time_s.samples).verdict != "no difference"


def _real() -> Iterator[str]:
    """The program itself: runs of a quick profile with noise, each compared with all later ones."""
    with tempfile.TemporaryDirectory() as folder:
        same = [_run(Path(folder), 1.0, seed) for seed in range(_REAL_RUNS)]
        slower = [_run(Path(folder), SLOWER, seed) for seed in range(_REAL_RUNS)]
        found = [_compared(baseline, [*same[n + 1 :], *slower]) for n, baseline in enumerate(same)]
    first = found[0]
    rates = [one.throughput.median for one in first.results[:_REAL_RUNS] if one.throughput]
    own = [_verdict(against) != "no difference" for one in found for against in one.against_first[:-_REAL_RUNS]]
    other = [_verdict(against) == "slower" for one in found for against in one.against_first[-_REAL_RUNS:]]
    apart = statistics.stdev(rates) / statistics.mean(rates)
    yield (
        f"{2 * _REAL_RUNS} real runs of quick-pair, {_REAL_LONGER:g} times as slow, {NOISE:.0%} noise, --duration 4: "
        f"of {len(own)} pairs of the same {sum(own)} called different, "
        f"of {len(other)} with one {SLOWER - 1:.0%} slower {sum(other)} called slower; "
        f"from run to run throughput differs by {apart:.2%} (standard deviation)"
    )


def _run(folder: Path, slower: float, seed: int) -> Path:
    devices, joint = noisy_devices(ROOT / "configs" / "quick-pair.toml", NOISE, _REAL_LONGER * slower)
    lines = []
    for device in devices:
        assert device.profile is not None
        known = device.profile.model_dump(include={"name", "alpha_s", "beta_s", "noise"})
        lines += ["[[device]]", *(f"{key} = {json.dumps(value)}" for key, value in known.items())]
    profile, path = folder / f"{slower}.toml", folder / f"{slower}-{seed}.json"
    profile.write_text("\n".join([*lines, "[joint]", f"sync_s = {joint.sync_s}", ""]))
    measuring = ("--windows", "3", "--duration", "4", "--baseline", "none", "--seed", str(seed))
    path.write_text(measured("run", "--simulate", str(profile), "--batches", "120", "80", *measuring))
    return path


def _compared(baseline: Path, others: Sequence[Path]) -> Comparison:
    return Comparison.model_validate_json(gpubalance("compare", str(baseline), *map(str, others), "--json").stdout)


def _verdict(against: Against) -> str | None:
    assert against.ratio is not None
    return against.ratio.verdict
