"""Workers behind an agent, with real agents and real processes: the prefix that reaches both hosts is a shell."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from gpubalance.devices.hosts import Installed, command_on, reach
from gpubalance.errors import BadInput, EnvironmentFault, GpubalanceError, PartialResult
from gpubalance.results.timing import Timing
from gpubalance.settings.device import Device
from gpubalance.settings.requests import Settings
from gpubalance.settings.shares import Shares
from gpubalance.workers import agents as agents_module
from gpubalance.workers import there as there_module
from gpubalance.workers.agents import connected, end_connections
from gpubalance.workers.party import Build, Party
from gpubalance.workers.pipes import make_room, readable
from gpubalance.workers.worker import Worker
from tests.bench import hosts
from tests.stand_in import engine
from tests.workers.test_ranks import BUILD, DEVICES, ROOT, SPLIT

VIA = """sh -c 'echo; echo Welcome.; printf "Last login: "; ON=$0 exec "$@"' {host}"""  # as a login shell may


@pytest.fixture
def party_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Party]]:
    """A function that makes a party over both hosts, each behind an agent, whose engine follows the script."""

    def make(script: str) -> Party:
        for name, value in engine(tmp_path, script).items():
            monkeypatch.setenv(name, value)
        return Party(DEVICES, build=BUILD)

    reach("alpha,beta", VIA)
    with connected(()):
        yield make
    reach(None, None)


def test_a_shell_on_the_other_side_reads_the_same_words_as_none() -> None:
    """As ssh's, whose words are one line to it. What looks like Ray's is nothing but a word."""
    reach("alpha", "env {host} {gpus}")
    command = command_on("alpha", "gpubalance.__main__", "a 'word'", "")
    reach(None, None)
    assert command is not None
    assert command[:3] == ["env", "alpha", "{gpus}"]
    by_shell = subprocess.run(["sh", "-c", " ".join(command[3:])], capture_output=True, text=True, check=False)
    by_none = subprocess.run(command[3:], capture_output=True, text=True, check=False)
    assert "a 'word'" in by_shell.stderr
    assert by_shell.stderr == by_none.stderr


def below() -> list[psutil.Process]:
    """All child processes: agents and workers."""
    return [one for child in psutil.Process().children() for one in (child, *child.children(recursive=True))]


def agents() -> list[psutil.Process]:
    """The agents among the child processes; each is its own connection."""
    return [child for child in psutil.Process().children() if "gpubalance.workers.agent" in " ".join(child.cmdline())]


def left_of(there: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes that have not ended within an agent's wait for its controller."""
    return list(psutil.wait_procs(there, timeout=35)[1])


def measured(worker: Worker) -> list[object]:
    return list(worker.measure(SPLIT, at_least=2, stamped=True))


def test_a_worker_behind_an_agent_is_a_worker(party_that: Callable[[str], Party]) -> None:
    """Its log is here too: what it prints comes over its agent's stderr."""
    with party_that("def built(devices):\n    import os\n    print('on', os.environ['ON'])\n") as party:
        timing, *_ = party.ask(measured)
        assert isinstance(timing, Timing)
        assert timing.compute_s == pytest.approx((0.110, 0.110, 0.112))
        assert "on alpha" in party.ask(lambda worker: worker.process.log_tail())
        before = agents()
        assert len(before) == 2
        party.regroup([DEVICES[2]])
        assert party.ask(lambda worker: worker.devices) == (DEVICES[2],)
        assert agents() == before
        there = below()
    end_connections()
    assert not left_of(there)


def test_of_gpus_a_worker_of_a_cluster_is_told_its_own(party_that: Callable[[str], Party]) -> None:
    """The stand-in for the engine takes 10 ms and 0.1 ms a sample on a GPU."""
    gpus = [
        Device(index=0, uuid=f"GPU-{host}", name="GPU", memory_bytes=None, simulated=False, host=host)
        for host in ("alpha", "beta")
    ]
    party_that("def built(devices):\n    import os\n    assert devices[0].host == os.environ['ON']\n").end()
    with Party(gpus, build=BUILD) as party:
        timing, *_ = party.ask(lambda worker: list(worker.measure(Shares((8, 16)), stamped=True)))
        assert isinstance(timing, Timing)
        assert timing.compute_s == pytest.approx((0.0108, 0.0116))


def test_thousands_of_pipes_can_be_waited_for() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        make_room(2000)
        reading, writing = os.pipe()
        high = fcntl.fcntl(reading, fcntl.F_DUPFD, 2000)
        os.write(writing, b"\n")
        assert readable(high, 0)
        for end in (reading, writing, high):
            os.close(end)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_bench_of_many_hosts_counts_two() -> None:
    (_, two) = hosts.main(2)
    assert two.split()[:2] == ["2", "16"]


def test_a_prefix_that_is_slow_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Ctrl-C: nothing is held yet by an agent that has not answered."""
    for module, name in ((agents_module, "_END_WITHIN_S"), (there_module, "_ENDS_WITHIN_S")):
        monkeypatch.setattr(module, name, 600.0)
    reach("alpha,beta", "sh -c 'sleep 600' {host}")
    with Party(DEVICES, build=BUILD) as party:
        party.load()
    end_connections()
    reach(None, None)
    assert not below()


def test_a_prefix_that_makes_a_terminal_is_told(party_that: Callable[[str], Party]) -> None:
    """As `ssh -tt` does: the agent would read its own words."""
    with party_that("") as party:
        reach("alpha,beta", f"{sys.executable} -c 'import pty, sys; pty.spawn(sys.argv[2:])' {{host}}")
        with pytest.raises(EnvironmentFault, match=r" alpha makes a terminal there\n.* leave that option out of --via"):
            party.start()


FAILS = """
import os, signal, time
def step(devices, *_):
    if devices[0].host == "beta":
        {act}
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        ("os.abort()", PartialResult, "^beta:0: the worker was ended by SIGABRT while"),
        ("os.kill(os.getppid(), signal.SIGKILL)", PartialResult, "^beta is lost: the connection ended"),
        ("os.kill(os.getppid(), signal.SIGSTOP)", PartialResult, "^beta is lost: nothing has come from it"),
    ],
    ids=["the worker dies", "the connection ends", "nothing comes any more"],
)
def test_what_is_lost_is_told_with_its_host_and_nothing_is_left(
    party_that: Callable[[str], Party],
    act: str,
    kind: type[GpubalanceError],
    says: str,
) -> None:
    with party_that(FAILS.format(act=act)) as party:
        party.start()
        there = below()
        with pytest.raises(kind, match=says):
            party.ask(measured)
    end_connections()
    assert not left_of(there)


def test_other_software_and_another_model_are_told_before_anything_is_built(
    party_that: Callable[[str], Party], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each host has modules of its own; here they are as on the first."""
    for host, content in (("alpha", "def net(): ..."), ("beta", "def net(): 'another'")):
        (tmp_path / host).mkdir()
        (tmp_path / host / "mine.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path / "alpha"))
    mine = Build(Settings(model="mine:net"), BUILD.joint)
    party_that("").end()
    reach("alpha,beta", f"env PYTHONPATH={tmp_path}/{{host}}:{os.environ['PYTHONPATH']}")
    with Party(DEVICES, build=mine) as party, pytest.raises(BadInput, match="mine:net on beta is not the same as here"):
        party.start()
    end_connections()  # they know what was installed when they began
    (tmp_path / "beta/keras-1.0.dist-info").mkdir()
    (tmp_path / "beta/keras-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 1.0\n")
    here = Installed.here().keras
    with (
        Party(DEVICES, build=BUILD) as party,
        pytest.raises(EnvironmentFault, match=rf"^beta has keras 1\.0 \(here {here}\)"),
    ):
        party.start()


def test_a_killed_controller_leaves_nothing(tmp_path: Path) -> None:
    command = ["run", "--simulate", str(ROOT / "configs/two-hosts.toml"), "--batches", "80", "40", "24"]
    program = subprocess.Popen(
        [sys.executable, "-m", "gpubalance", *command, "--hosts", "alpha,beta", "--via", VIA, "--duration", "600"],
        env={**os.environ, **engine(tmp_path, "")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    for line in program.stderr:
        if "window 1 of" in line:
            break
    there = psutil.Process(program.pid).children(recursive=True)
    assert len(there) >= 2 + len(DEVICES)  # an agent a host
    program.send_signal(signal.SIGKILL)
    program.communicate()
    assert not left_of(there)
