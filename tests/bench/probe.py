"""What a probe costs beside its measuring: time outside measured steps, workers, OOMs; with and without --ahead."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.results.probe import DeviceProbe, Probe
from tests.bench.measured import measured
from tests.cli.program import ROOT


def main() -> Iterator[str]:
    profile = ROOT / "configs" / "gtx1080ti-gtx1080.toml"
    for options in ((), ("--no-ahead",)):
        probe = Probe.model_validate_json(measured("probe", "--simulate", str(profile), *options))
        for one in probe.probes:
            yield f"GPU:{one.device} {' '.join(options) or '--ahead'}: {_figures(one)}"


def _figures(one: DeviceProbe) -> str:
    trials = one.batch_limit.trials if one.batch_limit else ()
    failed = sum(trial.outcome != "fits" for trial in trials)
    outside = (one.elapsed_s - one.measured_s) / one.measured_s
    return (
        f"time outside measured steps over time in them {outside:.2f}, at most 1; {len(one.curve)} batch sizes, "
        f"{one.children} workers, {len(trials)} trials, {failed} out of memory"
    )
