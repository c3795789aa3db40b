"""A failure by chance, or a device that is blamed for another's, costs no throughput."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from gpubalance.errors import EnvironmentFault, NothingFits, OutOfMemory
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.events import Doing, Event
from gpubalance.jobs.measure.out_of_memory import (
    FittingSize,
    JointMemorySearch,
    _needs_and_has,
)
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.drawn import DrawnGroup, DrawnWorker, drawn_workers, quiet
from tests.jobs.probes import MIB, QUICK, SMALL, devices_of, probe_of
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.machines import Machine

MACHINES = [Machine(seed, 0.0) for seed in range(5000, 5060)]
# The devices of these hold in a joint run what they hold alone, so nothing else fails.
ROOMY = [
    one for one in MACHINES if not one.joint.extra_memory and one.wanted.accumulate == 1
][:1]


def failing(*at: int) -> type[DrawnGroup]:
    """Groups that run out of memory, for no reason, when they are asked for these times."""

    class Failing(DrawnGroup):
        asked = 0

        @contextmanager
        def worker(self, number: int = 0) -> Iterator[DrawnWorker]:
            self.asked += 1
            if self.asked in at:
                raise OutOfMemory("replica 0 ran out of memory", replica=0)
            with super().worker(number) as worker:
                yield worker

    return Failing


@pytest.mark.parametrize("machine", ROOMY, ids=lambda machine: str(machine.seed))
def test_a_chance_out_of_memory_is_not_believed(machine: Machine) -> None:
    """Two of them are: the second when the whole split is tried again, or measured."""
    expected = machine.rate(machine.balanced().split)
    for again, part in ((), 0.99), ((3,), 0.8), ((4,), 0.8):
        found = machine.rate(machine.balanced(group_of=failing(1, *again)).split)
        assert found > part * expected


THIRTY = altered(QUICK, name="small", memory=(64 + 4 * 30) * MIB)
TINY = altered(QUICK, memory=66 * MIB)
FITS = "this fits (tried): --batches "


@cases(
    "profiles, batches, blamed, full, remedy, tries",
    ((QUICK, THIRTY), (100, 60), 1, "GPU:1 (small) at batch 60", f"{FITS}100 30", 1),
    ((QUICK, THIRTY), (1, 50), 1, "GPU:1 (small) at batch 50", f"{FITS}1 30", 2),
    # TensorFlow may blame another device, or none.
    ((QUICK, THIRTY), (100, 60), 0, "GPU:1 (small) at batch 60", f"{FITS}100 30", 3),
    ((QUICK, THIRTY), (100, 60), None, "GPU:1 (small) at batch 60", f"{FITS}100 30", 2),
    ((QUICK, THIRTY), (100, 20), 0, "a device", "the same split fits on a second", 2),
    ((TINY, TINY), (8, 8), 1, "GPU:1 (quick) at batch 8", "not even one sample", 7),
    ids=str,
)
def test_what_does_not_fit_is_named_with_what_does(
    profiles: tuple[DeviceProfile, ...],
    batches: tuple[int, ...],
    blamed: int | None,
    full: str,
    remedy: str,
    tries: int,
) -> None:
    devices = devices_of(*profiles)
    joint = JointProfile()
    split = BatchSplit(batches)
    asked = RunRequest(devices=devices, split=split, settings=SMALL, joint=joint)
    worker_group = cast("WorkerGroup", DrawnGroup(devices, joint))
    told: list[Event] = []
    failed = OutOfMemory("it ran out", replica=blamed)
    error = JointMemorySearch(worker_group, asked, told.append).error(failed)
    assert error.message == f"out of memory: {full} in the run of {split}"
    assert error.remedy.startswith(remedy)
    assert told[0] == Doing("it ran out; looking for what fits")
    assert len(told) - 1 == tries


def test_unknown_memory_is_tried_at_half_the_sizes_and_at_one_sample() -> None:
    """64 MiB and 4 MiB a sample: 69 MiB hold one."""
    searches = []
    for memory in (512 * MIB, 69 * MIB):
        devices = devices_of(*[altered(QUICK, memory=memory)] * 2)
        plain = tuple(altered(one, profile=None, simulated=False) for one in devices)
        asked = RunRequest(devices=plain, split=BatchSplit((20, 10)), settings=SMALL)
        worker_group = cast("WorkerGroup", DrawnGroup(devices, JointProfile()))
        searches.append(JointMemorySearch(worker_group, asked, quiet))
    large, small = searches
    first, second = large._lines_at(BatchSplit((20, 10)), (144 * MIB, 104 * MIB))
    assert first == [(10, 104 * MIB), (20, 144 * MIB)]
    assert second == [(5, 84 * MIB), (10, 104 * MIB)]
    assert small._trains_at_all()


@cases(
    "replica, needed, told",
    (1, (70, 80), ": GPU:1 needs 80.0 MiB, and 75.0 MiB are free"),
    (None, (70, 80), ": GPU:1 needs 80.0 MiB, and 75.0 MiB are free"),
    (None, (75, 75), ""),
    (1, (70, None), ""),
    (0, (), ""),
)
def test_what_the_device_needs_that_refused(
    replica: int | None, needed: tuple[int | None, ...], told: str
) -> None:
    bytes_ = tuple(size and size * MIB for size in needed)
    error = OutOfMemory("full", replica=replica, memory_peak_bytes=bytes_)
    pair = devices_of(QUICK, QUICK)
    assert _needs_and_has(error, pair, (75 * MIB, 75 * MIB)) == told
    assert _needs_and_has(error, pair, (None, None)) == ""
    gpus = [altered(device, simulated=False) for device in pair]
    if told:
        real = _needs_and_has(error, gpus, (75 * MIB, 75 * MIB))
        held = told.replace("needs", "held")
        assert real == held.replace(", and", " when it requested more, and")


def limits_of(
    failed: OutOfMemory, *profiles: DeviceProfile, batches: tuple[int, ...]
) -> list[FittingSize]:
    """What a balance plans with after that failure, of devices of which the first has no samples."""
    asked = BalanceRequest(devices=devices_of(QUICK, *profiles), settings=SMALL)
    split = BatchSplit((0, *batches))
    # Its probe would be told of devices that hold more: joint steps take more memory.
    roomy = devices_of(*[QUICK] * len(asked.devices))
    probe = altered(probe_of(roomy), devices=asked.devices)
    rounds = BalanceRounds(drawn_workers(asked), probe)
    return rounds._fitting_sizes(split, failed, believed=False)


def test_a_balance_steps_back_to_what_fits_unless_it_was_chance() -> None:
    full = OutOfMemory("it ran out", replica=1)
    assert limits_of(full, QUICK, THIRTY, batches=(100, 60)) == [(2, 30)]
    assert limits_of(full, THIRTY, THIRTY, batches=(40, 60)) == [(1, 30), (2, 30)]
    assert limits_of(full, QUICK, THIRTY, batches=(100, 20)) == []
    with pytest.raises(NothingFits, match="it ran out") as caught:
        limits_of(full, TINY, TINY, batches=(8, 8))
    assert "not even one sample per device fits" in caught.value.remedy
    fault = EnvironmentFault("cuDNN is missing")
    with pytest.raises(EnvironmentFault):
        limits_of(OutOfMemory("full", fault=fault), TINY, TINY, batches=(8, 8))
