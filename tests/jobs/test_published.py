"""The published pair comes out of the real engine.

Throughput is within 4 %, and each device's compute within 3 %. It is a campaign, as it needs a
machine that does nothing else; on counted time tests/jobs/test_probe.py has the same figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpubalance.jobs.measure.figures import late_part
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Sensors, Workload
from gpubalance.jobs.measure.workload_runner import (
    NOT_YET,
    WorkloadRunner,
    step_s_of,
    train_until_ready,
    train_until_settled,
)
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.jobs.probes import of_config
from tests.support.asked import asked
from tests.support.cases import cases
from tests.support.known import known

pytestmark = pytest.mark.campaign

DEVICES, JOINT = of_config("gtx1080ti-gtx1080")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with WorkerGroup(
        DEVICES, build=Build(settings=Settings(model="small"), joint=JOINT)
    ) as worker_group:
        opened = asked(worker_group, lambda worker: worker)
        train_until_ready(
            WorkloadRunner(opened, Workload(BatchSplit((8, 8))), Sensors()), NOT_YET
        )
        yield opened


@cases(
    "split, published",
    (BatchSplit((512, 512)), 1810),
    (BatchSplit((512, 355)), 2030),
    (BatchSplit((820, 568)), 2123),
    # This is past memory, so each half takes the time that such a batch takes.
    (BatchSplit((1100, 710), (550, 355)), None),
)
def test_a_published_split(
    worker: Worker, split: BatchSplit, published: float | None
) -> None:
    runner = WorkloadRunner(worker, Workload(split), Sensors())
    step_s = step_s_of(train_until_settled(runner)[-1])
    window = runner.window(StoppingRule.of_window(Measuring(duration_s=4.0)), step_s)
    measured = measurement(split, [window], runner.sensors, (0, 1))

    assert published is None or measured.throughput.median == pytest.approx(
        published, rel=0.04
    )
    for device, replica in zip(DEVICES, measured.replicas, strict=True):
        profile = known(device.profile)
        by_profile_s = profile.compute_s(replica.batch, replica.micro_batch)
        assert replica.compute_s == pytest.approx(by_profile_s, rel=0.03)
        assert replica.memory_peak_bytes == profile.memory_at(
            replica.micro_batch, JOINT.extra_memory
        )
        parts = (
            replica.busy_s + replica.wait_s + measured.sync_s + measured.input_wait_s
        )
        assert parts == pytest.approx(measured.step_time_s.median, rel=0.01)
    assert late_part([window]) < 0.5
