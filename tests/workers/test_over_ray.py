"""Workers on the nodes of a Ray cluster, with real nodes and actors.

The engine trains nothing. What they measure with TensorFlow is in test_plain_shell.py.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpubalance.devices.hosts import connect_hosts
from gpubalance.devices.selection import reach_planned
from gpubalance.errors import EnvironmentFault, PartialResult, UsageError
from gpubalance.results.plan import Plan
from gpubalance.results.records import read_record
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.workers.hosts import connected
from gpubalance.workers.worker_group import WorkerGroup
from tests.cli.program import lines_until, start
from tests.stand_in import engine
from tests.support import forks
from tests.support.told import refused
from tests.training.test_hosts import write_plan
from tests.workers.test_process import left_of
from tests.workers.test_ranks import BUILD, DEVICES, ROOT

pytestmark = pytest.mark.xdist_group("ray")

TWO_HOSTS = ("--simulate", str(ROOT / "configs/two-hosts.toml"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes, alpha and beta, whose workers have the engine of a script in `cluster.folder`."""
    ray_cluster = pytest.importorskip("ray.cluster_utils")
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forks.none().items():  # Ray's processes are counted
            patch.setenv(name, value)
        for name, value in engine(folder).items():
            patch.setenv(name, value)
        made = ray_cluster.Cluster()
        periods = {"initial_delay_ms": 0, "period_ms": 500}
        notices = {f"health_check_{name}": n for name, n in periods.items()}
        node: Any = {"num_cpus": 0, "include_dashboard": False}
        try:
            made.add_node(node_name="alpha", _system_config=notices, **node)
            made.beta = made.add_node(node_name="beta", **node)
            patch.setenv("RAY_ADDRESS", made.address)
            made.folder = folder
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def group_that(cluster: Any) -> Iterator[Callable[..., WorkerGroup]]:
    """A function that makes a worker group over devices, whose engine follows the script.

    A process that Ray has started holds each device.
    """

    def make(script: str, devices: Any = DEVICES) -> WorkerGroup:
        engine(cluster.folder, script)
        return WorkerGroup(devices, build=BUILD)

    assert connect_hosts("ray", None) == ("alpha", "beta")
    yield make
    engine(cluster.folder)
    connect_hosts(None, None)


def ours_of(cluster: Any) -> list[psutil.Process]:
    """This cluster's workers, and the processes that hold them and connect this host to them."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        variables = process.info["environ"] or {}
        script = variables.get("ENGINE_STAND_IN_SCRIPT", "")
        words = " ".join(process.info["cmdline"] or ())
        if str(cluster.folder) in script and re.search("gpubalance.programs.", words):
            found.append(process)
    return found


@pytest.mark.full  # Ray
def test_ray_gives_no_gpu_that_it_has_not(
    group_that: Callable[..., WorkerGroup],
) -> None:
    """It is asked once for all that a command uses of a node."""
    own: Any = {"name": "card", "memory_bytes": 1 << 30, "simulated": False}
    first = Device(index=0, uuid="GPU-0", host="alpha", **own)
    cards = [first, first.model_copy(update={"index": 1, "uuid": "GPU-1"})]
    group_that("")
    says = refused("^alpha can't be reached: the process that Ray", EnvironmentFault)
    with says as told, connected(cards):
        pass
    assert "2 GPUs were requested on alpha, which has 0" in told.value.log


@pytest.mark.full  # Ray
def test_all_nodes_are_probed(
    cluster: Any, group_that: Callable[..., WorkerGroup]
) -> None:
    """Devices of all nodes are probed and a killed controller leaves nothing."""
    program = start("probe", *TWO_HOSTS, "--hosts", "ray")
    told = lines_until(program, "^alpha:0 batch ")
    # Both at the same time
    if not any(line.startswith("beta:0 batch ") for line in told):
        lines_until(program, "^beta:0 batch ")
    there = ours_of(cluster)
    # Each of two has a worker, its agent and what connects this host to that.
    assert len(there) > 2 * 3
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert not left_of(there)


@pytest.mark.full  # Ray
def test_a_lost_node_is_told(
    cluster: Any, group_that: Callable[..., WorkerGroup]
) -> None:
    """This is the last test of this cluster, as it loses a node.

    The node's actor may live on; of a process that hears nothing see test_hosts.py.
    """
    sleeps = "def step(*_):\n    import time\n    time.sleep(600)\n"
    with group_that(sleeps, (DEVICES[0], DEVICES[2])) as worker_group:
        worker_group.start()
        os.kill(cluster.beta.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        with refused("^beta is lost: ", PartialResult), worker_group.worker() as worker:
            list(worker.measure(BatchSplit((8, 8)), at_least=2, stamped=True))


@pytest.mark.full  # Ray
def test_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    plan = read_record(write_plan(tmp_path, reached_by="ray"), Plan)
    with refused(r"^--hosts ray: .*finds no cluster", EnvironmentFault):
        reach_planned(plan, None, None)


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("^--hosts ray: Ray is not installed", EnvironmentFault):
        connect_hosts("ray", None)
    with refused("Ray reaches its hosts itself", UsageError):
        connect_hosts("ray", "ssh {host}")
