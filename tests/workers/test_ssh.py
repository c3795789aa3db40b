"""Hosts behind a real sshd: this user's own, on this machine alone."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpubalance.remedies import known_error
from gpubalance.results.checkup import Checkups
from gpubalance.results.run import Run
from tests.cli.program import SHORT, here
from tests.stand_in import engine
from tests.support import forks
from tests.support.known import known
from tests.support.made import made

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.full]

SSHD = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized
StrictModes no
UsePAM no
PidFile none
SetEnv {variables}
"""
# ssh takes the first value that it finds, but all keys
CLIENT = """
Host no-key
    IdentityFile {folder}/host_key
Host no-python no-gpubalance
    IdentityFile {folder}/%n
Host unknown-key
    HostKeyAlias another
Host no-answer
    Port 1
Host no-name
    HostName no-name.invalid
Host * !no-key !no-python !no-gpubalance
    IdentityFile {folder}/key
Host *
    HostName 127.0.0.1
    Port {port}
    IdentitiesOnly yes
    HostKeyAlias all
    UserKnownHostsFile {folder}/known
    GlobalKnownHostsFile none
    BatchMode yes
"""
# A key that is only good for this command, whatever is asked
FORCED = {
    "no-python": "/nowhere/bin/python agent.py",
    "no-gpubalance": f"{sys.executable} /nowhere/agent.py",
}


@pytest.fixture(scope="module")
def via(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The prefix that reaches hosts of any name, all this machine, with the engine's stand-in."""
    folder = tmp_path_factory.mktemp("ssh")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forks.none().items():
            patch.setenv(name, value)
        with serving(folder, engine(folder) | {"XDG_STATE_HOME": str(folder)}) as via:
            yield via


@contextmanager
def serving(folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """An sshd whose sessions have these variables beside a login's own: the prefix by which."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("no sshd here: Debian's openssh-server has it")
    for key in ("host_key", "key", *FORCED):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(make, check=True)
    (folder / "known").write_text(f"all {(folder / 'host_key.pub').read_text()}")
    allowed = [(folder / "key.pub").read_text()]
    for key, does in FORCED.items():
        allowed.append(f'command="{does}" {(folder / f"{key}.pub").read_text()}')
    (folder / "authorized").write_text("".join(allowed))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    set_env = " ".join(f"{name}={text}" for name, text in variables.items())
    given: Any = {"port": port, "folder": folder, "variables": set_env}
    for name, text in (("sshd", SSHD), ("client", CLIENT)):
        (folder / name).write_text(text.format(**given))
    with ExitStack() as undo:
        if os.geteuid() == 0:
            undo.enter_context(made(Path("/run/sshd")))
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd")])
        undo.callback(server.wait)
        undo.callback(server.terminate)
        _wait_for(port)
        yield f"ssh -F {folder}/client {{host}}"


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("sshd does not listen")


@pytest.mark.usefixtures("stand_in")
def test_a_run_over_ssh_of_a_host_with_a_users_name(via: str) -> None:
    me = f"{getpass.getuser()}@alpha"
    hosts = ("--simulate", "1", "--hosts", f"{me},beta", "--via", via)
    done = here("run", *hosts, "--batches", "8", "4", *SHORT, "--json", code=0)
    run = Run.model_validate_json(done.stdout)
    assert [device.label for device in run.devices] == [f"{me}:0", "beta:0"]


def test_doctor_says_what_is_missing_on_each_host(via: str) -> None:
    names = ("no-key", "unknown-key", "no-answer", "no-name")
    rows = {name: f"ssh-{name}" for name in names}
    rows |= {name: f"{name}-there" for name in ("no-python", "no-gpubalance")}
    done = here("doctor", "--hosts", ",".join(rows), "--via", via, "--json", code=3)
    found = Checkups.model_validate_json(done.stdout)
    assert [checkup.host for checkup in found.hosts] == [*rows]
    for checkup, code in zip(found.hosts, rows.values(), strict=True):
        (check,) = checkup.checks
        row = known_error(code)
        assert check.detail.endswith(f": {row.cause}")
        remedy = row.remedy.replace("HOST", known(checkup.host))
        assert known(check.next).startswith(remedy)
