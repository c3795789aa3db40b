"""The record of what was measured of independent models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubalance.errors import GpubalanceError, NothingFits, OutOfMemory, PartialResult
from gpubalance.jobs.endings import one_error
from gpubalance.jobs.environment import environment
from gpubalance.jobs.independent.window import AllAtOnce
from gpubalance.jobs.keep.saved import best_joint_run
from gpubalance.jobs.measure.warnings import of_figures, resumed
from gpubalance.numbers.ratio import ratio
from gpubalance.numbers.stats import interval_of_sum
from gpubalance.results.common import Throughput, Warning_, now
from gpubalance.results.independent import HeldAgainst, Independent, OwnModel
from gpubalance.results.probe import Failure

if TYPE_CHECKING:
    from gpubalance.jobs.independent.independent import Replica, Turns


def independent_result(
    turns: Turns, driver: str | None, *, complete: bool, noted: Sequence[Warning_] = ()
) -> Independent | None:
    """The result of what was measured so far; None before the first timing. `noted` has warnings to add to its own."""
    request, replicas = turns.request, turns.replicas
    every = [series for subject in (*turns.alone, turns.at_once) for series in subject.series.values()]
    facts = [one.facts for one in replicas if one.facts]
    began = [series.began_s for series in every if series.windows]
    if not began or not facts:
        return None
    together = [one for one in turns.going if turns.at_once.windows]
    rates = [(one.throughput.median, one.step_times_s) for one in turns.at_once.series.values() if one.windows]
    is_one = len(facts) == len(replicas) and len({one.model for one in facts}) == 1
    model = facts[0].model if is_one else None
    solo = [turns.alone[one.number].series[one.number].throughput.median for one in together]
    devices = [one.device for one in together]
    run = best_joint_run(devices, model, request.settings) if devices and model else None
    return Independent(
        created=now(),
        settings=request.settings,
        environment=environment(driver),
        model=model,
        devices=request.devices,
        replicas=tuple(_own_model(turns, one, min(began)) for one in replicas),
        throughput=Throughput(median=sum(rate for rate, _ in rates), ci95=interval_of_sum(rates)) if rates else None,
        solo_sum=sum(solo) if solo else None,
        overlap_s=sum(one.overlap_s for one in turns.at_once.windows),
        joint=HeldAgainst(**run.model_dump(include={*HeldAgainst.model_fields})) if run else None,
        complete=complete,
        warnings=(*_warnings(turns), *noted),
    )


def _own_model(turns: Turns, one: Replica, origin_s: float) -> OwnModel:
    both = [subject.series.get(one.number) for subject in (turns.alone[one.number], turns.at_once)]
    alone, at_once = (series if series and series.windows else None for series in both)
    found = None
    if alone and at_once:
        value = at_once.throughput.median / alone.throughput.median
        found = ratio(value, at_once.step_times_s, alone.step_times_s)
    settings = turns.request.settings
    fed = settings.data is not None or settings.input == "host"
    peaks = [peak for series in both for peak in (series.peaks if series else ()) if peak is not None]
    solo_telemetry, telemetry = (series and series.sensors.telemetry(origin_s)[0] for series in both)
    return OwnModel(
        device=one.number,
        model=one.model,
        batch=one.batch,
        solo_throughput=alone and alone.throughput.median,
        throughput=at_once and at_once.throughput.median,
        contention=found and 1 - found.value,
        contention_ci95=found and found.ci95 and (1 - found.ci95[1], 1 - found.ci95[0]),
        solo_step_time_s=alone and alone.step_time(origin_s),
        step_time_s=at_once and at_once.step_time(origin_s),
        solo_input_wait_s=alone.input_wait_s if alone and fed else None,
        input_wait_s=at_once.input_wait_s if at_once and fed else None,
        memory_peak_bytes=max(peaks, default=None),
        telemetry=telemetry,
        solo_telemetry=solo_telemetry,
        failure=Failure.of(one.error) if one.error else None,
    )


def _warnings(turns: Turns) -> list[Warning_]:
    """What the reader of the figures must know."""
    series = [one for subject in turns.subjects() for one in subject.series.values() if one.windows]
    figures = of_figures(turns.request.settings.model, turns.slowed, series)
    return [*resumed(turns.once.again[AllAtOnce]), *figures]


def what_failed(turns: Turns) -> GpubalanceError | None:
    """One error that names all failed devices, None if none failed: partial unless all devices failed alike."""
    failed = [(one.device, one.error) for one in turns.replicas if one.error]
    if not failed:
        return None
    kinds = {type(error) for _, error in failed}
    kind = PartialResult if turns.going or len(kinds) > 1 else kinds.pop()
    return one_error(NothingFits if kind is OutOfMemory else kind, failed)
