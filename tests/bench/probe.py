"""What a probe costs, time outside measured steps, workers and OOMs, and how right it is; with and without --ahead."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.settings.device import DeviceProfile
from tests.bench.measured import measured
from tests.cli.program import ROOT


def main() -> Iterator[str]:
    profile = ROOT / "configs" / "gtx1080ti-gtx1080.toml"
    for options in ((), ("--no-ahead",)):
        probe = Probe.model_validate_json(measured("probe", "--simulate", str(profile), *options))
        for one in probe.probes:
            device = probe.devices[one.device].profile
            assert device is not None
            yield f"GPU:{one.device} {' '.join(options) or '--ahead'}: {_figures(one)}; {_errors(one, device)}"


def _errors(one: DeviceProbe, device: DeviceProfile) -> str:
    """By how much the curve and the model miss the profile's step times, and whether the limit is its own."""
    assert one.step_time_model is not None
    assert device.memory is not None
    model = one.step_time_model.planned
    pairs = [(p.step_time_s.median, device.alpha_s + device.beta_s * p.batch) for p in one.curve]
    points = max(abs(time_s / true_s - 1) for time_s, true_s in pairs)
    between = range(one.curve[0].batch, one.curve[-1].batch + 1)
    line = max(abs(model.step_time_s(b) / (device.alpha_s + device.beta_s * b) - 1) for b in between)
    fits = one.batch_limit.fits if one.batch_limit else None
    true = (device.memory - device.base_memory) // device.memory_per_sample // 8 * 8
    return f"off by at most {points:.2%} at a point, {line:.2%} by the model; batch limit {fits}, in truth {true}"


def _figures(one: DeviceProbe) -> str:
    trials = one.batch_limit.trials if one.batch_limit else ()
    failed = sum(trial.outcome != "fits" for trial in trials)
    outside = (one.elapsed_s - one.measured_s) / one.measured_s
    return (
        f"{one.elapsed_s:.0f} s; time outside measured steps over time in them {outside:.2f}, at most 1; "
        f"{len(one.curve)} batch sizes, "
        f"{one.children} workers, {len(trials)} trials, {failed} out of memory"
    )
