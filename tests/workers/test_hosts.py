"""Workers on other hosts, with real processes: the prefix that reaches both hosts is a shell."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpubalance.devices.hosts import command_on, connect_hosts, unreachable
from gpubalance.errors import EnvironmentFault, GpubalanceError, PartialResult
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.system.deadlines import TimeLimit
from gpubalance.system.versions import software
from gpubalance.workers import agent
from gpubalance.workers.failures import tail
from gpubalance.workers.hosts import connected
from gpubalance.workers.messages import Build
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import WorkerGroup
from tests.cli.program import lines_until, start, typed
from tests.stand_in import engine
from tests.support.asked import asked
from tests.support.cases import cases
from tests.support.told import refused
from tests.workers.test_process import left_of
from tests.workers.test_ranks import BUILD, DEVICES, ROOT, SPLIT

pytestmark = pytest.mark.usefixtures("own_processes")
# A login shell may print such lines.
VIA = """sh -c 'echo; echo Welcome.; printf "Last login: "; ON=$0 exec "$@"' {host}"""


@pytest.fixture
def group_that(
    engine_that: Callable[[str], None],
) -> Iterator[Callable[..., WorkerGroup]]:
    """A function that makes a worker group over both hosts.

    Each host is behind a prefix, and the worker group's engine follows the script.
    """

    def make(
        script: str = "",
        devices: Sequence[Device] = DEVICES,
        build: Build = BUILD,
        via: str = VIA,
    ) -> WorkerGroup:
        engine_that(script)
        connect_hosts("alpha,beta", via)
        return WorkerGroup(devices, build=build)

    yield make
    connect_hosts(None, None)


def below() -> list[psutil.Process]:
    """All child processes: what reaches a host, and workers."""
    return list(psutil.Process().children(recursive=True))


def measured(worker: Worker) -> list[object]:
    return list(worker.measure(SPLIT, at_least=2, stamped=True))


def test_a_worker_on_another_host_is_a_worker(
    group_that: Callable[..., WorkerGroup],
) -> None:
    """Its log is here too: what it prints comes over what reaches the host.

    The worker is told of its own GPUs only.
    """
    prints = "def built(devices):\n    import os\n    print('on', os.environ['ON'])\n"
    with group_that(prints) as worker_group:
        with connected(DEVICES):
            timing, *_ = asked(worker_group, measured)
        assert isinstance(timing, Timing)
        assert timing.compute_s == pytest.approx((0.110, 0.110, 0.112))
        log = asked(worker_group, lambda worker: worker.process.log)
        assert "on alpha" in tail(log)
        there = below()
        assert len(there) == 2 * len(DEVICES)
        limits = tuple(device.memory_bytes for device in DEVICES)
        assert worker_group.facts.memory_limit_bytes == limits
        worker_group.regroup(DEVICES[:2])  # of one host: one process, as ever
        assert not worker_group.alive
    assert not left_of(there)
    card: Any = {"index": 0, "name": "GPU", "memory_bytes": None, "simulated": False}
    gpus = [Device(uuid=f"GPU-{host}", host=host, **card) for host in ("alpha", "beta")]
    looks = prints.replace("print('on', ", "assert devices[0].host == (")
    with group_that(looks, gpus) as worker_group:
        with worker_group.worker() as worker:
            timing, *_ = worker.measure(BatchSplit((8, 16)), stamped=True)
        assert isinstance(timing, Timing)
        # The stand-in takes 10 ms and 0.1 ms a sample.
        assert timing.compute_s == pytest.approx((0.0108, 0.0116))


def test_a_connection_that_was_only_held_is_not_waited_for_long(
    group_that: Callable[..., WorkerGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host may no longer answer, and there is no memory that a worker must free."""
    group_that()
    waited: list[float] = []
    wait = subprocess.Popen.wait

    def noted(process: Any, timeout: float | None = None) -> int:
        waited.append(timeout or 0.0)
        return int(wait(process, timeout))

    with connected(DEVICES):
        monkeypatch.setattr(subprocess.Popen, "wait", noted)
    assert 0 < max(waited) < 20
    assert not below()


# This makes a terminal as `ssh -tt` does: it would read its own words.
TERMINAL = f"{sys.executable} -c 'import pty, sys; pty.spawn(sys.argv[2:])' {{host}}"
SAYS = r" alpha makes a terminal there\n.* leave that option out of --via"
SLOW = ("sh -c 'sleep 600' {host}", 1.0, "the time limit of 1 s passed")


@cases("via, limit_s, says", (TERMINAL, 60.0, SAYS), SLOW)
def test_a_prefix_that_does_not_do_is_told_and_left(
    group_that: Callable[..., WorkerGroup], via: str, limit_s: float, says: str
) -> None:
    """Nothing is held yet by what has not answered, so that its end is not waited for."""
    group_that(via=via)
    limited = WorkerGroup(DEVICES, build=BUILD, limit=TimeLimit(limit_s))
    with limited as worker_group, refused(says, GpubalanceError):
        worker_group.start()
    assert not below()


FAILS = """
import os, signal, time
def step(devices, *_):
    if devices[0].host == "beta":
        {}
    time.sleep(600)
"""
LOSSES = {
    "os.abort()": "^beta:0: the worker was ended by SIGABRT while",
    "os.kill(os.getppid(), signal.SIGKILL)": "^beta is lost: the connection ended",
    "os.kill(os.getppid(), signal.SIGSTOP)": "^beta is lost: nothing has come from it",
}


def test_a_loss_is_told_with_its_host(group_that: Callable[..., WorkerGroup]) -> None:
    """A worker dies, a connection ends, and nothing comes any more.

    All happen at the same time, as a host is waited for 20 s.
    """
    with ThreadPoolExecutor(len(LOSSES)) as threads, ExitStack() as ended:
        parties = []
        for act in LOSSES:
            parties.append(ended.enter_context(group_that(FAILS.format(act))))
            parties[-1].start()
        there = below()
        attempts = [threads.submit(asked, group, measured) for group in parties]
        for attempt, says in zip(attempts, LOSSES.values(), strict=True):
            with refused(says, PartialResult):
                attempt.result()
    assert not left_of(there)


def test_other_software_and_another_model_are_told_first(
    group_that: Callable[..., WorkerGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Other software and another model are told before anything is built.

    Each host has modules of its own; here they are as on the first.
    """
    for host in ("alpha", "beta"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "mine.py").write_text(f"def net(): {host!r}")
    monkeypatch.syspath_prepend(str(tmp_path / "alpha"))
    paths = engine(tmp_path)["PYTHONPATH"]
    via = f"env PYTHONPATH={tmp_path}/{{host}}:{paths}"
    mine = Build(settings=Settings(model="mine:net"), joint=BUILD.joint)
    another = "mine:net on beta differs from the file here"
    with group_that(build=mine, via=via) as worker_group, refused(another):
        worker_group.start()
    keras = tmp_path / "beta/keras-1.0.dist-info"
    keras.mkdir()
    metadata = "Metadata-Version: 2.1\nName: keras\nVersion: 1.0\n"
    (keras / "METADATA").write_text(metadata)
    other = rf"^beta has keras 1\.0 \(here {software().keras}\)"
    with group_that(via=via) as worker_group, refused(other, EnvironmentFault):
        worker_group.start()


def test_a_killed_controller_leaves_nothing(tmp_path: Path) -> None:
    words = typed("run --batches 80 40 24 --duration 600 --hosts alpha,beta --simulate")
    hosts = str(ROOT / "configs/two-hosts.toml")
    program = start(*words, hosts, "--via", VIA, environment=engine(tmp_path))
    lines_until(program, "window 1 of")
    there = psutil.Process(program.pid).children(recursive=True)
    assert len(there) >= 2 + 2 * len(DEVICES)  # a connection a host besides
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert not left_of(there)


def test_a_card_that_has_no_carrier_yet_gives_the_last_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have come up but now: then loopback was told, by which no other host is reached."""
    cards = {"lo": "127.0.0.1", "late": "10.0.0.1", "up": "10.0.0.2"}
    of_cards = {}
    for name, address in cards.items():
        of_cards[name] = [SimpleNamespace(family=socket.AF_INET, address=address)]
    states = {name: SimpleNamespace(isup=name != "late") for name in cards}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: of_cards)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert agent._own_addresses() == ["10.0.0.2", "10.0.0.1"]


def test_what_another_user_runs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent ends though it may not kill what its process has left."""

    def kill(pid: int, number: int) -> None:
        tried.append((pid, number))
        raise PermissionError

    tried: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(os, "kill", kill)
    left = [SimpleNamespace(pid=7)]
    monkeypatch.setattr(psutil.Process, "children", lambda _: left)
    agent._end_children()
    assert tried == [(7, signal.SIGKILL)]


@cases("via, shell_reads", (None, True), ("ssh g ssh {host}", True), (VIA, False))
def test_a_path_that_a_shell_would_cut_is_refused_for_ssh(
    via: str | None, shell_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other prefixes pass it on whole, and the line to type is for the user's own shell."""
    monkeypatch.setattr(sys, "executable", "/my code/python")
    try:
        if shell_reads:
            with refused("ssh can't start /my code/python .* ' '", EnvironmentFault):
                connect_hosts("alpha", via)
        else:
            connect_hosts("alpha", via)
            error = unreachable("alpha", "ended")
            assert "alpha '/my code/python' -m gpubalance --version" in error.remedy
    finally:
        connect_hosts(None, None)


@cases("home, shared", ("", True), ("a" * 30, False), ("missing/home", False))
def test_ssh_shares_a_login_only_where_it_can_make_a_socket(
    home: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fail where the folder is missing, or its path longer than a socket's may be."""
    with TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder, home)
        if "/" not in home:
            place.mkdir(exist_ok=True)
        user = SimpleNamespace(pw_dir=str(place))
        monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
        connect_hosts("alpha", None)
        words = command_on("alpha", "agent.py")
        connect_hosts(None, None)
        assert words is not None
        assert ("ControlMaster=auto" in words) == shared
        assert not list(place.glob(".ssh/*"))
