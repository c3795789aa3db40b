"""How long a probe takes, its workers and OOMs, and how accurate it is, with and without --ahead."""

from __future__ import annotations

from collections.abc import Iterator

from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.settings.device import DeviceProfile
from tests.bench.measured import measured
from tests.bench.wanted import Wanted, judged
from tests.cli.program import ROOT

_MOST_TIMES = 12
_A_DEVICE_S = 60.0  # so that balancing two takes three minutes


def main() -> Iterator[str]:
    for options in ((), ("--no-ahead",)):
        named = " ".join(options) or "--ahead"
        probes: list[Probe] = []
        took_s = judged(_seconds(options, probes), Wanted(_A_DEVICE_S, at_most=True), _MOST_TIMES)
        yield f"{named}: seconds a device: {took_s}"
        for one in probes[0].probes:
            device = probes[0].devices[one.device].profile
            assert device is not None
            yield f"GPU:{one.device} {named}: {_figures(one)}; {_errors(one, device)}"


def _seconds(options: tuple[str, ...], probes: list[Probe]) -> Iterator[float]:
    """The seconds of each device of each probe; adds the probes to `probes`."""
    profile = ROOT / "configs" / "gtx1080ti-gtx1080.toml"
    while True:
        probes.append(Probe.model_validate_json(measured("probe", "--simulate", str(profile), *options)))
        for one in probes[-1].probes:
            yield one.elapsed_s


def _errors(one: DeviceProbe, device: DeviceProfile) -> str:
    """By how much the curve and the model miss the profile's step times, and whether the limit is the profile's."""
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
    return (
        f"{one.elapsed_s:.0f} s, {one.measured_s:.0f} of them in measured steps; {len(one.curve)} batch sizes, "
        f"{one.children} workers, {len(trials)} trials, {failed} out of memory"
    )
