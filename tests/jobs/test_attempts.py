"""How often a batch is tried on a device, in which worker, and what is kept of that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.probe.attempts import Attempts
from gpubalance.jobs.probe.curve import keeps_speed, measure_slower_again
from gpubalance.results.probe import CurvePoint
from tests.jobs.drawn import quiet
from tests.jobs.probes import MIB, QUICK, SMALL, devices_of, exact_point, point_of
from tests.support.altered import altered
from tests.support.cases import cases

(DEVICE,) = devices_of(QUICK)
DIED = PartialResult("it died")
FULL = OutOfMemory("full", memory_peak_bytes=(99,))


class Scripted(Attempts):
    """Measures nothing: each try ends as a script says, by default well with 4 MiB a sample."""

    dropped = 0

    def __init__(
        self,
        *ends: GpubalanceError | None,
        kept: dict[str, Any] | None = None,
        **probe_worker: Any,
    ) -> None:
        self.ends = list(ends)
        self.workers: list[tuple[bool, bool]] = []  # fresh, last
        self.kept: dict[str, Any] = {**(kept or {})}
        self.told: list[str] = []
        asked = {"duration_s": None, "settings": SMALL, "for_split": False}
        journal = SimpleNamespace(
            load=lambda key, _: self.kept.get(key),
            load_all=lambda _: self.kept,
            keep=self.kept.__setitem__,
        )
        usual = {
            "device": DEVICE,
            "request": SimpleNamespace(**asked),
            "usable_bytes": None,
            "fragments_memory": True,
            "journal": journal,
            "deaths": [],
            "worker_group": SimpleNamespace(alive=True, drop=self._drop),
            "time_limit": SimpleNamespace(check=lambda: None),
            "watch": quiet,
            "ensure_worker": self._ensure_worker,
            "get_or_make": self._get_or_make,
            "report": self.told.append,
            "lose": lambda error: self.told.append(error.message),
        }
        super().__init__(SimpleNamespace(**{**usual, **probe_worker}))  # type: ignore[arg-type]

    def _ensure_worker(self, *, fresh: bool = False, last: bool = False) -> None:
        self.workers.append((fresh, last))

    def _get_or_make(self, what: str, _: object, make: Callable[[], Any]) -> Any:
        self.told.append(what)
        return make()

    def _drop(self) -> None:
        self.dropped += 1

    def measured(self, batch: int, rule: StoppingRule) -> CurvePoint:
        del rule
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end
        peak = {"memory_peak_bytes": 4 * MIB * batch}
        return altered(point_of(QUICK, batch, QUICK.compute_s(batch)), **peak)

    def tried(self, batch: int, **how: Any) -> str:
        return self.try_batch(batch, "why", within=0.01, **how).trial.outcome


def outcomes(attempts: Attempts) -> list[tuple[int, str, str, bool]]:
    return [(t.batch, t.outcome, t.reason, t.fresh) for t in attempts.trials]


def test_a_point_is_tried_once_and_the_limit_twice_at_most() -> None:
    attempts = Scripted()
    assert [attempts.tried(8) for _ in range(3)] == ["fits"] * 3
    assert attempts.workers == [(False, False)]
    assert outcomes(attempts) == []  # of the limit
    assert list(attempts.points) == [8]
    attempts = Scripted(FULL, None)
    tried = [attempts.tried(8, for_limit=True) for _ in range(3)]
    assert tried == ["oom", "fits", "fits"]
    assert attempts.workers == [(False, False), (True, False)]
    assert outcomes(attempts) == [(8, "oom", "why", False), (8, "fits", "why", True)]
    assert attempts.trials[0].memory_peak_bytes == 99
    assert attempts.dropped == 1


@cases("device, is_used", ("SIM-0", True), ("SIM-1", False))
def test_failures_are_kept_only_with_a_batch_that_trained(
    device: str, is_used: bool
) -> None:
    """Else another program may have held the memory, and --resume would fail for ever."""
    failed = Scripted(FULL)
    failed.tried(16)
    trained = Scripted()
    trained.tried(8)
    kept = failed.kept | {f"{device} 8 0": trained.kept["SIM-0 8 0"]}
    again = Scripted(kept=kept, facts="of then")
    assert again.tried(16) == ("oom" if is_used else "fits")
    assert (again.probe_worker.facts is None) != is_used


@cases(
    "death, outcome, doubt",
    (DIED, "crash", "the worker died"),
    (DeadlinePassed("silent"), "deadline", "the worker sent nothing"),
)
def test_a_death_is_tried_again(
    death: GpubalanceError, outcome: str, doubt: str
) -> None:
    attempts = Scripted(None, death)
    attempts.tried(8)
    assert attempts.tried(16) == "fits"
    assert attempts.workers[1:] == [(False, False), (True, False)]
    assert outcomes(attempts) == [(16, outcome, "why", False)]
    assert sorted(attempts.kept) == ["SIM-0 16 0", "SIM-0 8 0"]
    again = Scripted(kept=attempts.kept)
    assert (again.tried(16), again.workers) == ("fits", [])
    twice = Scripted(None, death, death)
    twice.tried(8)
    assert twice.tried(16) == outcome
    assert outcomes(twice)[1] == (16, outcome, f"once more, as {doubt}", True)
    assert list(twice.kept) == ["SIM-0 8 0"]
    assert len(twice.probe_worker.deaths) == 2
    with pytest.raises(type(death)):
        Scripted(death, death).tried(8)


def test_what_fails_below_a_batch_that_passed_is_tried_in_a_fresh_worker() -> None:
    attempts = Scripted(None, FULL)
    attempts.tried(16)
    assert attempts.tried(8) == "fits"
    assert outcomes(attempts) == [(8, "oom", "why", False)]
    assert attempts.workers[-1] == (True, False)
    above = Scripted(None, FULL)
    above.tried(8)
    assert above.tried(16, last=True) == "oom"
    assert above.workers[-1] == (False, True)


def test_a_batch_that_was_only_shown_to_train_counts_by_its_last_try() -> None:
    attempts: Any = Scripted()
    ends = ((True, 2.0), (False, None), (True, None))
    tries = [SimpleNamespace(trains=trains, step_s=step_s) for trains, step_s in ends]
    attempts._tries |= {8: tries[1::-1], 16: tries[:2], 32: tries}
    assert attempts.single_steps() == {8: 2.0}


@cases(
    "usable, batch, more, fresh",
    (128 * MIB, 16, {}, False),  # half of it is enough
    (128 * MIB, 17, {}, True),
    (128 * MIB, 17, {"fragments_memory": False}, False),
    (None, 100, {}, False),
    (60 * MIB, 4, {}, True),  # what 8 took counts
    ids=str,
)
def test_a_limit_that_may_need_most_of_the_memory_gets_a_fresh_worker(
    usable: int | None, batch: int, more: dict[str, Any], fresh: bool
) -> None:
    attempts = Scripted(usable_bytes=usable, **more)
    attempts.tried(8)
    attempts.tried(batch, for_limit=True)
    assert attempts.workers[-1][0] == fresh


def test_what_takes_more_than_may_be_used_does_not_fit() -> None:
    attempts = Scripted(usable_bytes=32 * MIB, fragments_memory=False)
    assert (attempts.tried(8), attempts.tried(9)) == ("fits", "margin")
    assert attempts.dropped == 0  # memory of simulated devices is only counted
    assert list(attempts.points) == [8]
    assert attempts.trials[0].memory_peak_bytes == 36 * MIB


def attempts_that_raise(error: GpubalanceError) -> Attempts:
    def worker() -> Any:
        raise error

    return Attempts(Scripted(worker=worker).probe_worker)


def test_a_fault_may_be_memorys_once_a_smaller_batch_has_passed() -> None:
    fault = BadInput("odd shape")
    attempts = attempts_that_raise(fault)
    with pytest.raises(BadInput):
        attempts.measured(8, attempts.rule)
    attempts.points[4] = point_of(QUICK, 4, 0.1)
    with pytest.raises(OutOfMemory, match="odd shape"):
        attempts.measured(8, attempts.rule)
    assert attempts.fault is None
    hidden = OutOfMemory("full", fault=EnvironmentFault("cuDNN failed"))
    attempts = attempts_that_raise(hidden)
    with pytest.raises(EnvironmentFault):
        attempts.measured(1, attempts.rule)
    attempts.points[16] = point_of(QUICK, 16, 0.1)  # which is no smaller one
    with pytest.raises(OutOfMemory, match="cuDNN failed"):
        attempts.measured(8, attempts.rule)
    assert attempts.fault is hidden.fault
    plain = attempts_that_raise(FULL)
    with pytest.raises(OutOfMemory) as caught:
        plain.measured(8, plain.rule)
    assert caught.value is FULL


def test_a_batch_that_took_longer_than_a_larger_one_is_measured_once_more() -> None:
    attempts = Scripted(None, DIED)
    slow = {batch: exact_point(batch, 0.5) for batch in (8, 16, 24)}
    attempts.points = {**slow, 32: exact_point(32, 0.1)}
    attempts.points[24] = altered(slow[24], measured_again=True)
    measure_slower_again(attempts)
    (took, lost) = (attempts.points[batch] for batch in (8, 16))
    assert (took.measured_again, lost) == (True, slow[16])
    assert took.step_time_s.median == pytest.approx(QUICK.compute_s(8))
    once = "took longer than batch 32: measuring it again"
    told = [f"batch 8 {once}", "8 slower", f"batch 16 {once}", "16 slower", "it died"]
    assert attempts.told == told
    assert attempts.workers == [(False, True)] * 2


@cases(
    "for_split, factor, looked_at",
    (True, 1.0, [64, 128]),
    (False, 1.0, [8, 64]),
    (True, 1.1, [64] * 3),  # until it is certain
)
def test_small_batches_do_not_tell_a_split_if_a_device_keeps_its_speed(
    *, for_split: bool, factor: float, looked_at: list[int]
) -> None:
    """From 64 samples on a step gives at least half of the most samples/s."""
    request = SimpleNamespace(duration_s=None, for_split=for_split)
    attempts: Any = Scripted(request=request)
    for batch in (8, 16, 32, 64, 128, 256):
        attempts.points[batch] = exact_point(batch, factor * QUICK.compute_s(batch))
    looked: list[int] = []

    def measured(batch: int, rule: StoppingRule) -> CurvePoint:
        looked.append(batch)
        return Scripted.measured(attempts, batch, rule)

    attempts.measured = measured
    assert keeps_speed(attempts) == (factor == 1.0)
    assert attempts.told[0] == "drift"
    assert looked == looked_at
    attempts.points.clear()
    assert keeps_speed(attempts)
