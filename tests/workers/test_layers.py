"""A real worker with a model that is cut over two simulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpubalance.planning.pipeline.problem import (
    BlockLoad,
    Cut,
    CutProblem,
    Graph,
    Segment,
)
from gpubalance.planning.pipeline.schedule import simulate
from gpubalance.results.timing import BlockTimed, Timing
from gpubalance.settings.device import DeviceProfile, JointProfile
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Build, Measured, Pipe, TimeBlocks
from gpubalance.workers.worker_group import WorkerGroup
from tests.engine.pipelines import orders_of
from tests.jobs.probes import devices_of
from tests.support import forks
from tests.support.asked import asked
from tests.support.known import known

pytestmark = pytest.mark.xdist_group("layers worker")

_MIB = 1 << 20
_HOLDS = {"base_memory": 1000 * _MIB, "memory_per_sample": 10 * _MIB}
_TAKES = {"alpha_s": 0.04, "beta_s": 0.01, "update_s": 0.02}
_FAST = DeviceProfile(name="fast", memory=600 * _MIB, **_HOLDS, **_TAKES)
_PROFILES = [_FAST, _FAST.model_copy(update={"name": "slow", "alpha_s": 0.08})]
_JOINT = JointProfile(link_latency_s=0.005, link_bytes_per_s=1e6)
_SIZE = 4
_COUNT = 4


@pytest.fixture(scope="module")
def worker_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    build = Build(settings=Settings(model="small"), joint=_JOINT, cuts=())
    devices = devices_of(*_PROFILES)
    with forks.forking(), WorkerGroup(devices, build=build) as worker_group:
        yield worker_group


def graph_of(worker_group: WorkerGroup) -> Graph:
    worker_group.start()
    return known(worker_group.facts.graph)


def test_two_segments_take_at_least_the_time_and_memory_planned(
    worker_group: WorkerGroup,
) -> None:
    """Two segments take at least the time and the memory that is planned."""
    graph = graph_of(worker_group)
    segments = (Segment(0, 13, 0), Segment(14, 18, 1))
    loads = []
    for profile in _PROFILES:
        whole_s = profile.alpha_s + _SIZE * profile.beta_s
        loads.append(BlockLoad.by_profile(graph, profile, _SIZE, whole_s))
    orders = orders_of(segments, graph, _COUNT)
    problem = CutProblem(graph, tuple(loads), _SIZE, _COUNT, 0.005, 1e6)
    planned = simulate(Cut(problem, segments), orders)
    sizes = {"micro_batch": _SIZE, "micro_batches": _COUNT}
    wanted = Pipe(segments=segments, order=tuple(orders), stamped=True, **sizes)
    stamped, measured = asked(worker_group, lambda worker: [*worker.pipe(wanted)])
    assert isinstance(stamped, Timing)
    assert isinstance(measured, Measured)
    timeline = known(stamped.timeline)
    # A busy machine's steps may take longer, never shorter.
    # When a task ends follows from all before it.
    ends_s = {task.task: task.end_s for task in planned.tasks}
    assert all(task.end_s >= ends_s.pop(task.task) - 1e-6 for task in timeline.tasks)
    assert not ends_s
    assert timeline.step_time_s >= planned.step_time_s - 1e-6
    weights = _parts(graph, segments, "weights_bytes")
    live = _parts(graph, segments, "activation_bytes")
    for device, in_flight in enumerate((2, 1)):
        mib = 1000 * weights[device] + in_flight * _SIZE * 10 * live[device]
        assert measured.memory_peak_bytes[device] == pytest.approx(mib * _MIB)


def _parts(graph: Any, segments: Any, name: str) -> list[float]:
    """Each segment's part of the model."""
    sums = []
    for segment in segments:
        sums.append(sum(getattr(one, name) for one in graph.blocks[segment.blocks]))
    return [own / sum(sums) for own in sums]


def test_blocks_are_timed_alone(worker_group: WorkerGroup) -> None:
    graph = graph_of(worker_group)
    wanted = TimeBlocks(blocks=(0, 2), micro_batch=_SIZE)
    kinds = BlockTimed, Measured
    *timed, _ = asked(worker_group, lambda worker: [*worker.replies(wanted, *kinds)])
    assert [(one.block, one.micro_batch) for one in timed] == [(0, _SIZE), (2, _SIZE)]
    for one in timed:
        forward_s = graph.blocks[one.block].share * 0.08 / 3
        # A busy machine's passes may take longer, never shorter.
        assert len(one.forward_s) == len(one.backward_s) >= 3
        assert min(one.forward_s) >= forward_s - 1e-6
        assert min(one.backward_s) >= 2 * forward_s - 1e-6
