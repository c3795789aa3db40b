"""Which packs of gradients a balance goes on with: those with which the split is fastest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from gpubalance.jobs.balance.balance import choose_packs, has_much_sync
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.rounds import measure_split
from gpubalance.jobs.events import Doing, Event, Watch
from gpubalance.jobs.journal import Journal, free_journal
from gpubalance.results.common import Model
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Overhead
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest
from gpubalance.workers.messages import Build
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import DrawnGroup, DrawnWorker, nothing_kept, quiet, ready
from tests.jobs.probes import MIB, QUICK, SMALL, devices_of, measurement_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

PROFILED = devices_of(QUICK, QUICK)
# A device that follows a profile gives all gradients at its end: these follow none.
PLAIN = tuple(altered(one, profile=None) for one in PROFILED)
SPLIT = BatchSplit((32, 32))
COMPUTE_S = QUICK.compute_s(32)  # 16.4 ms
LARGE = Model(name="small", parameters=4 * MIB, gradient_bytes=16 * MIB)


class PackedGroup(DrawnGroup):
    """Two workers at a time whose sync depends on the size of packs; None: memory runs out."""

    alive = False

    def __init__(
        self, syncs_s: Mapping[int, float | None], own: int = 0, model: Model = LARGE
    ) -> None:
        self._syncs_s = syncs_s
        self._own = own
        self._model = model
        self.overhead = Overhead()
        self.sizes: list[int] = []  # with which workers were started

    def regroup(self, devices: object) -> None:
        pass

    def rebuild(self, build: Build) -> None:
        asked = build.settings.pack_bytes
        self._size = self._own if asked is None else asked

    def start(self) -> None:
        sync_s = self._syncs_s[self._size]
        extra = known(QUICK.memory) if sync_s is None else 0
        joint = JointProfile(sync_s=sync_s or 0.0, extra_memory=extra)
        self._worker = DrawnWorker(PROFILED, joint, seed=0)
        found = {"model": self._model, "pack_bytes": self._size}
        self._worker.facts = altered(ready(2), **found)
        self.sizes.append(self._size)
        self.alive = True

    def end(self) -> None:
        self.alive = False


def joint_workers_of(
    worker_group: PackedGroup,
    watch: Watch = quiet,
    journal: Journal | None = None,
    devices: tuple[Device, ...] = PLAIN,
    **settings: Any,
) -> JointWorkers:
    asked = BalanceRequest(
        devices=devices,
        settings=altered(SMALL, **settings),
        plan=PlanRequest(global_batch=64),
        measuring=Measuring(windows=2, duration_s=0.5),
    )
    journal = journal or nothing_kept()
    return JointWorkers(asked, None, cast("WorkerGroup", worker_group), watch, journal)


def chosen(
    joint_workers: JointWorkers, split: BatchSplit = SPLIT
) -> Measurement | None:
    before = measure_split(joint_workers, split, None)
    return choose_packs(joint_workers, split, before, None)


@cases(
    "own, syncs_ms, fastest",
    (0, {0: 8, MIB: 4, 4 * MIB: 6}, MIB),
    (0, {0: 8, MIB: 6, 4 * MIB: 4}, 4 * MIB),
    # Less than 1 % faster than what is known
    (0, {0: 8, MIB: 7.9, 4 * MIB: 7.8}, 0),
    (0, {0: 8, MIB: 7, 4 * MIB: 6.9}, MIB),
    (0, {0: 8, MIB: None, 4 * MIB: 7}, 4 * MIB),
    # Four times as large is all gradients at once.
    (4 * MIB, {4 * MIB: 8, MIB: 9, 0: 5}, 0),
    (4 * MIB, {4 * MIB: 8, MIB: 5, 0: None}, MIB),
    (4 * MIB, {4 * MIB: 8, MIB: None, 0: None}, 4 * MIB),
    ids=str,
)
def test_the_fastest_of_three_sizes_is_gone_on_with(
    own: int, syncs_ms: dict[int, float | None], fastest: int
) -> None:
    syncs_s = {size: ms and ms / 1e3 for size, ms in syncs_ms.items()}
    worker_group = PackedGroup(syncs_s, own)
    events: list[Event] = []
    joint_workers = joint_workers_of(worker_group, events.append)
    found = chosen(joint_workers)
    assert worker_group.sizes == [own, *sorted(syncs_ms.keys() - {own})]
    assert joint_workers.pack_bytes[SPLIT.used] == fastest
    assert joint_workers.settings_for(SPLIT).pack_bytes == fastest
    assert (found is None) == (fastest == own)
    if found is not None:
        rate = 64 / (COMPUTE_S + known(syncs_s[fastest]))
        assert found.throughput.median == pytest.approx(rate)
    assert joint_workers.gather(SPLIT).facts.pack_bytes == fastest
    first, *tries, last = [one.text for one in events if isinstance(one, Doing)]
    trying = "packs of gradients instead of all at once"
    if own:
        trying = "smaller and larger packs than 4.00 MiB"
    assert first == f"sync is 33 % of a step, 8.00 ms: trying {trying}"
    names = {0: "all gradients at once"}
    names |= {n * MIB: f"gradients in packs of {n}.00 MiB" for n in (1, 4)}
    assert last == f"continuing with {names[fastest]}"
    for size, told in zip(worker_group.sizes[1:], tries, strict=False):
        if syncs_s[size] is None:
            assert told == f"replica 0 ran out of memory with {names[size]}"
        else:
            rate = 64 / (COMPUTE_S + known(syncs_s[size]))
            assert told == f"{names[size]}: {rate:.0f} samples/s"


@cases(
    "sync_ms, split, settings",
    (0.8, SPLIT, {}),  # less than 5 % of a step
    (8.0, BatchSplit((64, 0)), {}),
    (8.0, SPLIT, {"xla": True}),
    (8.0, SPLIT, {"pack_bytes": 0}),
    (8.0, SPLIT, {"devices": PROFILED}),
    (8.0, SPLIT, {"devices": (PLAIN[0], PROFILED[1])}),
    (8.0, SPLIT, {"model": altered(LARGE, gradient_bytes=MIB // 16)}),
    ids=str,
)
def test_no_other_size_is_tried_where_it_could_not_help(
    sync_ms: float, split: BatchSplit, settings: dict[str, Any]
) -> None:
    model = settings.pop("model", LARGE)
    worker_group = PackedGroup({0: sync_ms / 1e3}, model=model)
    joint_workers = joint_workers_of(worker_group, **settings)
    before = measurement_of((32, 32), (COMPUTE_S,) * 2, sync_ms / 1e3)
    assert choose_packs(joint_workers, split, before, None) is None
    assert set(worker_group.sizes) <= {0}


def test_sync_is_much_above_a_twentieth_of_a_step() -> None:
    assert not has_much_sync(measurement_of((1, 1), (0.95, 0.95), 0.05))
    assert has_much_sync(measurement_of((1, 1), (0.949, 0.949), 0.051))


def test_sizes_that_were_tried_before_an_interruption_are_not_tried_again() -> None:
    syncs_s = {0: 0.008, MIB: None, 4 * MIB: 0.006}
    for sizes, resume in (([0, MIB, 4 * MIB], False), ([0], True)):
        worker_group = PackedGroup(syncs_s)
        with suppress(KeyboardInterrupt), free_journal("packs", resume) as journal:
            joint_workers = joint_workers_of(worker_group, journal=journal)
            assert chosen(joint_workers) is not None
            raise KeyboardInterrupt
        assert worker_group.sizes == sizes
        assert joint_workers.pack_bytes[SPLIT.used] == 4 * MIB


@cases("simulated, starts", (True, 1), (False, 2))
def test_after_sums_gpus_get_another_worker(*, simulated: bool, starts: int) -> None:
    devices = [altered(one, simulated=simulated) for one in PLAIN]
    worker_group = PackedGroup({0: 0.0})
    joint_workers_of(worker_group, devices=tuple(devices)).gather(SPLIT)
    joint_workers = joint_workers_of(worker_group, devices=tuple(devices))
    both, first = frozenset({0, 1}), frozenset({0})
    for _ in range(2):
        joint_workers.gather(SPLIT)
    assert worker_group.sizes == [0]
    assert {*joint_workers.time_sums(first, both, known={first})} == {both}
    for _ in range(2):
        joint_workers.gather(SPLIT)
    assert worker_group.sizes == [0] * starts


def test_an_interruption_leaves_the_size_of_what_is_known() -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Doing) and "packs of 1.00 MiB" in event.text:
            raise KeyboardInterrupt

    worker_group = PackedGroup({0: 0.008, MIB: 0.001, 4 * MIB: 0.001})
    joint_workers = joint_workers_of(worker_group, interrupt)
    with pytest.raises(KeyboardInterrupt):
        chosen(joint_workers)
    assert joint_workers.pack_bytes[SPLIT.used] == 0
