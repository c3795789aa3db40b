"""The best device is timed once with XLA, as Keras runs one GPU, and the faster of the two counts."""

from __future__ import annotations

from typing import Any

import pytest

from gpubalance.jobs.balance.balance import balance
from gpubalance.jobs.events import Doing, Event
from gpubalance.jobs.probe.probe import probe
from gpubalance.render.plan import plan_summary
from gpubalance.render.probe import probe_summary
from gpubalance.results.plan import Plan
from gpubalance.results.probe import CurvePoint, Probe
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings
from tests.cli.program import TINY
from tests.jobs.drawn import nothing_kept, quiet
from tests.jobs.probes import QUICK, devices_of
from tests.support.altered import altered
from tests.support.known import known

pytestmark = pytest.mark.usefixtures("either_engine")
SLOWER = altered(QUICK, name="slower", beta_s=2 * QUICK.beta_s)


def devices(factor: float | None) -> tuple[Device, ...]:
    """Two devices, of which the better one takes so many times as long with XLA."""
    return devices_of(SLOWER, altered(QUICK, xla_factor=factor))


def probed(factor: float | None, *, xla: bool = False) -> tuple[Probe, list[str]]:
    """A probe, and what it said of XLA."""
    events: list[Event] = []
    asked: Any = {"settings": Settings(model=TINY, xla=xla), "max_batch": 16}
    request = ProbeRequest(devices=devices(factor), duration_s=0.2, **asked)
    journal = nothing_kept()
    loaded: list[Any] = []
    journal.load = lambda *key: loaded.append(key)  # type: ignore[method-assign]
    kept: list[str] = []
    keep: Any = lambda key, _: kept.append(key)  # noqa: E731
    journal.keep = keep  # type: ignore[method-assign]
    found = probe(request, events.append, journal)
    # What the first worker said of the model is kept once.
    assert [key for key in kept if " " not in key] == ["SIM-0", "SIM-1"]
    texts = [event.text for event in events if isinstance(event, Doing)]
    said = [text for text in texts if "XLA" in text]
    may_be_kept = ("SIM-1 with XLA", CurvePoint) in loaded
    assert may_be_kept == bool(said)
    return found, said


def balanced(factor: float) -> Plan:
    request = BalanceRequest(
        devices=devices(factor),
        settings=Settings(model=TINY),
        plan=PlanRequest(max_global_batch=32),
        measuring=Measuring(windows=2, duration_s=0.2),
        round_s=0.2,
        rounds=1,
        fresh=True,
    )
    return balance(request, quiet, nothing_kept())


@pytest.mark.parametrize(("factor", "ratio"), [(0.5, 2.0), (2.0, 0.5)])
def test_the_faster_of_the_two_counts_and_is_named(factor: float, ratio: float) -> None:
    plan = balanced(factor)
    run, searched = known(plan.run), known(plan.balance)
    slower, better = known(run.baselines.solo_best)
    assert slower.xla_ratio is None
    assert better.xla_ratio == pytest.approx(ratio, rel=1e-3)
    alone = pytest.approx(slower.throughput + better.throughput)
    gap = known(searched.solo_gap)
    assert run.baselines.solo_sum == plan.predicted.solo_sum == alone
    assert gap.solo_sum == alone
    lost = max(0.0, 1 - 1 / ratio) * better.throughput
    assert gap.without_xla == pytest.approx(lost, rel=1e-3)
    text = "\n".join(str(part) for part in plan_summary(plan))
    is_faster = ratio > 1
    assert ("with XLA, Keras' default on one GPU)" in text) == is_faster
    assert ("in total, the best of them with XLA" in text) == is_faster
    assert ("without XLA; with it " in text) == (not is_faster)
    advice = "alone is 100 % faster with XLA: gpubalance balance --xla trains with it"
    assert (f"GPU:1 {advice}" in text) == is_faster


def test_a_probe_times_it_once_where_keras_would_use_xla() -> None:
    """A probe times it once where Keras would use XLA and nothing else does."""
    found, said = probed(0.8)
    timing = "timing GPU:1 at batch 16 with XLA, Keras' default on one GPU"
    assert said == [timing]
    assert "1.25 × that" in "\n".join(str(part) for part in probe_summary(found))
    for factor, xla in ((None, False), (0.8, True)):
        found, said = probed(factor, xla=xla)
        assert [entry.with_xla for entry in found.probes] == [None, None]
        assert not said
