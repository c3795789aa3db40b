"""Whether the even split is proven instead: only where it is clearly faster than the planned one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpubalance.errors import PartialResult
from gpubalance.jobs.balance import proof
from gpubalance.jobs.balance.proof import result_of
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.measure.joint import JointRun
from gpubalance.jobs.plan.splits import MeasuredSplit
from gpubalance.planning.problem import Allocation
from gpubalance.results.plan import Plan
from gpubalance.results.run import InputPipeline, Measurement, Run
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from tests.jobs.drawn import drawn_run, drawn_workers, noisy_devices
from tests.jobs.probes import CONFIGS, SMALL, probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

PLANNED = Allocation(BatchSplit((80, 48)), (0.03, 0.03), 0.03, ())
EVEN = BatchSplit((64, 64))


@pytest.fixture(scope="module")
def rounds_and_run() -> tuple[BalanceRounds, Run]:
    devices, joint = noisy_devices(CONFIGS / "quick-pair.toml", 0.0)
    wanted = PlanRequest(global_batch=128)
    asked = BalanceRequest(devices=devices, settings=SMALL, joint=joint, plan=wanted)
    run = drawn_run(devices, joint, (80, 48), seed=0, measuring=Measuring())
    return BalanceRounds(drawn_workers(asked), probe_of(devices)), run


@cases(
    "speedup, interval, is_proven",
    (0.90, (0.88, 0.92), True),
    (0.99, (0.985, 0.9955), True),
    # It may be as fast, but for what is worth no round.
    (0.99, (0.985, 0.9965), False),
    (0.95, (0.90, 1.01), False),
    (0.90, None, False),
    (1.0, (1.0, 1.0), False),
)
def test_the_even_split_is_proven_only_if_all_of_its_interval_is_faster(
    monkeypatch: pytest.MonkeyPatch,
    rounds_and_run: tuple[BalanceRounds, Run],
    speedup: float,
    interval: tuple[float, float] | None,
    is_proven: bool,
) -> None:
    rounds, run = rounds_and_run
    told: dict[str, Any] = {"speedup_over_even": speedup, "speedup_ci95": interval}
    first = altered(run, **told)
    proven: list[BatchSplit] = []

    def measured(_: BalanceRounds, planned: Allocation) -> tuple[Run, Measurement]:
        proven.append(planned.split)
        if planned.split == EVEN:
            even = {"batches": EVEN.batches, "micro_batches": EVEN.batches}
            return altered(run, **even), known(run.baselines.even)
        return first, first

    monkeypatch.setattr(proof, "_proof", measured)
    before = len(rounds.warnings)
    proof.prove(rounds, PLANNED)
    warned = rounds.warnings[before:]
    assert proven == [PLANNED.split, EVEN][: 1 + is_proven]
    assert [warning.code for warning in warned] == ["even-is-faster"][:is_proven]
    # Its batches are multiples of 8, so the planner had thought it slower.
    assert all("the devices were slower" in warning.next for warning in warned)


@cases("has_windows", True, False)
def test_a_proof_that_ends_early_leaves_the_plan_of_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
    rounds_and_run: tuple[BalanceRounds, Run],
    *,
    has_windows: bool,
) -> None:
    before, run = rounds_and_run
    rounds = BalanceRounds(before.joint_workers, before.probe)
    error = PartialResult("lost", partial=run if has_windows else None)

    def lost(_: Any) -> None:
        raise error

    monkeypatch.setattr(JointRun, "measure", lost)
    with pytest.raises(PartialResult) as caught:
        proof.prove(rounds, replace(PLANNED, binds=("speed", "speed")))
    if not has_windows:
        assert caught.value.partial is None
        return
    assert isinstance(caught.value.partial, Plan)
    assert caught.value.partial.batches == PLANNED.split.batches
    assert known(caught.value.partial.balance).run == run


def test_a_plan_tells_of_joined_batches_and_of_late_stamps(
    monkeypatch: pytest.MonkeyPatch, rounds_and_run: tuple[BalanceRounds, Run]
) -> None:
    rounds, run = rounds_and_run
    rounds.pipeline = InputPipeline(
        alone=run.throughput, processor_use=0.5, held=None, binds=False, joined_from=7
    )
    best = replace(PLANNED, binds=("speed", "speed"))
    monkeypatch.setattr(rounds.estimates, "stamps_are_late", True)
    plan = result_of(rounds, MeasuredSplit(best, (run,)))
    assert "stamps-late" in [one.code for one in plan.warnings]
    assert plan.pipeline == rounds.pipeline
    (joined,) = [one for one in plan.warnings if one.code == "batches-joined"]
    assert "batches have 7 samples" in joined.message
    assert f"were joined into batches of {run.global_batch}, " in joined.message
