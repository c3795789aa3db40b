"""What `doctor` says of hosts beside each other: real connections between processes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubalance.devices.hosts import connect_hosts
from gpubalance.jobs.doctor.doctor import check_ways

# gamma has a network of its own; each host's Python finds modules of its own.
_ON = 'export PYTHONPATH={}/$0:$PYTHONPATH; [ $0 = gamma ] && exec unshare -rn "$@"; exec "$@"'
_BEHIND = "import time\nright = time.time\ntime.time = lambda: right() - 400\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    if subprocess.run(
        ["unshare", "-rn", "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this user can't make a network namespace")
    (tmp_path / "beta").mkdir()
    (tmp_path / "beta/sitecustomize.py").write_text(_BEHIND)
    yield connect_hosts("alpha,beta,gamma", f"sh -c '{_ON.format(tmp_path)}' {{host}}")
    connect_hosts(None, None)


def test_a_clock_that_is_off_and_a_closed_port_are_told(hosts: tuple[str, ...]) -> None:
    checks = check_ways(hosts, lambda _: None)
    clocks = {}
    cut_off = {}
    for host, (clock, connections) in checks.items():
        clocks[host] = (clock.status, clock.detail)
        closed = r"port \d+ of [\d.]+ cannot be reached from (.*)"
        found = re.match(closed, connections.detail)
        assert found is not None
        assert connections.status == "failure"
        assert f"open {host}'s firewall" in (connections.next or "")
        cut_off[host] = re.findall(r"(\w+): ", found[1])
    assert clocks["alpha"][0] == clocks["gamma"][0] == "ok"
    assert clocks["beta"][0] == "warning"
    assert "behind the clock here" in clocks["beta"][1]
    others = {"alpha": ["gamma"], "beta": ["gamma"], "gamma": ["alpha", "beta"]}
    assert cut_off == others
    in_reach = check_ways(hosts[:2], lambda _: None)
    assert [check.status for _, check in in_reach.values()] == ["ok", "ok"]
