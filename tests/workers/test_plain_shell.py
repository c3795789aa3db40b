"""Each way by which another process starts ours, with no variables but those of a login.

The current folder has files that hide modules of Python's library from whoever looks there first.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import gpubalance
from gpubalance import programs
from gpubalance.results.run import Run
from tests.cli.program import PROGRAM, QUICK_PAIR, SHORT, TINY
from tests.support.cases import full
from tests.support.in_process import HANGS_AFTER_S
from tests.training.test_hosts import write_plan
from tests.workers.test_ssh import serving

pytestmark = pytest.mark.xdist_group("plain shell")
HIDING = ("warnings", "random", "queue", "types")
PREFIX = "env ON={host}"
TRAINS = """
import json, os, queue, random, types, warnings
import gpubalance.training.split
print(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current folder of the programs."""
    made = tmp_path_factory.mktemp("hiding")
    for name in HIDING:
        ends = f"raise SystemExit('{name}.py of the current folder was loaded')\n"
        (made / f"{name}.py").write_text(ends)
    return made


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a plain shell."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return kept | {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}


OTHERS = [full(name) for name in ("ssh", "ray")]
Reached = tuple[dict[str, str], tuple[str, ...]]


@pytest.fixture(scope="module", params=["prefix", *OTHERS])
def reached(
    request: Any, folder: Path, shell: dict[str, str], tmp_path_factory: Any
) -> Iterator[Reached]:
    """The variables with which alpha and beta are reached, and the options of `launch` for that."""
    with ExitStack() as stack:
        if request.param == "prefix":
            yield shell, ("--hosts", "alpha,beta", "--via", PREFIX)
        elif request.param == "ssh":
            keys = tmp_path_factory.mktemp("ssh")
            kept = {"XDG_STATE_HOME": shell["XDG_STATE_HOME"]}
            via = stack.enter_context(serving(keys, kept))
            yield shell, ("--hosts", "alpha,beta", "--via", via)
        else:
            address = stack.enter_context(ray_cluster(folder, shell))
            yield shell | {"RAY_ADDRESS": address}, ("--hosts", "ray")


@contextmanager
def ray_cluster(folder: Path, shell: dict[str, str]) -> Iterator[str]:
    """Two nodes that were started in such a shell: the cluster's address."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - shell.keys():
            patch.delenv(name)
        patch.chdir(folder)
        cluster = cluster_utils.Cluster()
        try:
            for name in ("alpha", "beta"):
                cluster.add_node(node_name=name, num_cpus=0, include_dashboard=False)
            yield cluster.address
        finally:
            cluster.shutdown()


def typed(
    *words: str, at: Path, env: dict[str, str], code: int = 0
) -> subprocess.CompletedProcess[str]:
    """What a program does that is typed there, with these variables only."""
    how: Any = {"cwd": at, "env": env, "stdin": subprocess.DEVNULL, "text": True}
    done = subprocess.run(words, capture_output=True, timeout=HANGS_AFTER_S, **how)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.full  # a TensorFlow on each host
def test_a_run_there(reached: Reached, folder: Path) -> None:
    variables, hosts = reached
    words = ("run", "--simulate", "1", *hosts, "--model", TINY, "--batches", "8", "4")
    done = typed(PROGRAM, *words, *SHORT, "--json", at=folder, env=variables)
    run = Run.model_validate_json(done.stdout)
    assert [device.label for device in run.devices] == ["alpha:0", "beta:0"]


def test_a_script_there(reached: Reached, folder: Path, tmp_path: Path) -> None:
    variables, (_, hosts, *via) = reached
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    plan = write_plan(tmp_path, reached_by="ray" if hosts == "ray" else "command")
    words = ("launch", *via, str(plan), str(script))
    done = typed(PROGRAM, *words, at=folder, env=variables)
    ranks = ["alpha:0 | 0", "alpha:1 | 1", "beta:0 | 2"]
    assert sorted(done.stdout.splitlines()) == ranks


@pytest.mark.full  # a TensorFlow of its own; `launch` is above
def test_a_run_and_a_queue_on_this_host(folder: Path, shell: dict[str, str]) -> None:
    run = f"{PROGRAM} run --simulate 1 --model {TINY} --batches 8 {' '.join(SHORT)}"
    (folder / "commands.txt").write_text(f"{run}\n")
    words = ("queue", "commands.txt", "--simulate", QUICK_PAIR)
    done = typed(PROGRAM, *words, at=folder, env=shell)
    assert "1 command on 2 devices" in done.stdout
    assert "all succeeded" in done.stdout


def test_a_program_that_is_started_by_its_path_lies_apart() -> None:
    """Python puts its folder first on the path, where no module of the library may be hidden.

    No other file of the package is one that can be started so, but for `__main__` and the
    examples, which users copy.
    """
    package = Path(gpubalance.__file__).parent
    apart = Path(programs.__file__).parent
    assert {path.name for path in apart.iterdir()} >= {"agent.py", "over_ray.py"}
    for path in apart.glob("*"):
        assert path.stem not in sys.stdlib_module_names, path
    for path in {*package.rglob("*.py")} - {*package.glob("examples/*")}:
        for statement in ast.parse(path.read_text()).body:
            is_program = ast.unparse(statement).startswith("if __name__ == '__main__'")
            assert not is_program or path.name == "__main__.py", path
