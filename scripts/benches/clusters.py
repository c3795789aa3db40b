"""The ways to reach unlike hosts, each as it is: sshd, Slurm with munge, and Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname

from gpubalance.programs import OVER_RAY
from scripts.benches.unlike_hosts import Host, Hosts
from tests.support.made import made

_STARTS_WITHIN_S = 90.0
_ENDS_WITHIN_S = 10.0

_SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/home/id_ed25519.pub
PidFile none
StrictModes no
UsePAM no
SetEnv TF_CPP_MIN_LOG_LEVEL=2 {variables}
"""
_SLURM = """
ClusterName=bench
SlurmctldHost={name}({address})
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/slurmd-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class NotServedError(Exception):
    """A server did not start, or a command failed; the text is what was said."""


@dataclass(frozen=True)
class Way:
    """How a user reaches the hosts: options of commands, and variables.

    `via` is typed with `launch` too. `close` ends what stays for a while; `serve` starts a host's
    server again.
    """

    hosts: str
    via: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None
    serve: Callable[[Host], None] = lambda _: None


@contextmanager
def ssh(hosts: Hosts) -> Iterator[Way]:
    """An sshd on each host, and a user with a key who has logged in before."""
    folder = hosts.folder
    for key in ("host_key", "home/id_ed25519"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(make, check=True)
    known = (folder / "host_key.pub").read_text()
    (folder / "home/known_hosts").write_text(f"{hosts.names} {known}")
    variables = " ".join(f"{name}={text}" for name, text in hosts.variables.items())
    config = folder / "sshd_config"
    config.write_text(_SSHD.format(folder=folder, variables=variables))
    with made(Path("/run/sshd")), ExitStack() as servers:

        def serve(host: Host) -> None:
            _serve(
                servers,
                [*host.within, "/usr/sbin/sshd", "-D", "-e", "-f", config],
                hosts,
            )

        for host in hosts.all:
            serve(host)
        for host in hosts.all:
            _until_answered(hosts, ["ssh", "-oBatchMode=yes", host.name, "true"])
        yield Way(hosts.names, close=lambda: _end_connections(hosts), serve=serve)


def _end_connections(hosts: Hosts) -> None:
    """Ends those that all commands share, which ssh keeps for a minute."""
    for host in hosts.all:
        hosts.typed(
            ["ssh", "-oControlPath=~/.ssh/gpubalance-%C", "-O", "exit", host.name]
        )


@contextmanager
def srun(hosts: Hosts) -> Iterator[Way]:
    """A slurmctld on the first host, a slurmd on each, munge, and an allocation of all hosts."""
    folder, first = hosts.folder, hosts.all[0]
    nodes = [
        f"NodeName={host.name} NodeAddr={host.address} CPUs=1\n" for host in hosts.all
    ]
    config = folder / "slurm.conf"
    settings = _SLURM.format(folder=folder, name=gethostname(), address=first.address)
    config.write_text(settings + "".join(nodes))
    (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    variables = {"SLURM_CONF": str(config)}
    with ExitStack() as servers:
        _serve(servers, _munged(folder), hosts)
        for host in hosts.all:
            # Under `ip netns exec` /sys has no cgroups, which slurmd looks for
            inside = [*host.slowed, "nsenter", f"--net=/run/netns/{host.name}"]
            if host is first:
                _serve(servers, [*inside, "slurmctld", "-D", "-f", config], hosts)
            _serve(
                servers, [*inside, "slurmd", "-D", "-f", config, "-N", host.name], hosts
            )
        allocate = ["salloc", f"-N{len(hosts.all)}", "--no-shell", "--immediate=5"]
        _until_answered(hosts, allocate, variables)
        job = hosts.typed(["squeue", "-h", "-o", "%i"], **variables).stdout.strip()
        via = ["--via", "srun --overlap -w {host}"]
        yield Way(hosts.names, via, variables | {"SLURM_JOB_ID": job})


def _munged(folder: Path) -> list[object]:
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    files = {
        "key-file": key,
        "pid-file": folder / "munge.pid",
        "log-file": folder / "munge.log",
    }
    files |= {"socket": folder / "munge.socket", "seed-file": folder / "munge.seed"}
    options = [f"--{name}={path}" for name, path in files.items()]
    return ["munged", "--foreground", "--force", *options]


@contextmanager
def ray(hosts: Hosts) -> Iterator[Way]:
    """A node of a Ray cluster on each host; the first one is its head."""
    first = hosts.all[0]
    address = f"{first.address}:6379"
    program = Path(sys.executable).with_name("ray")
    start = [program, "start", "--block", "--num-cpus=0", "--disable-usage-stats"]
    head = [
        "--head",
        "--port=6379",
        "--include-dashboard=false",
        f"--temp-dir={hosts.folder}/ray",
    ]
    nodes = [sys.executable, OVER_RAY, address, "nodes"]
    with ExitStack() as servers:
        for host in hosts.all:
            how = head if host is first else [f"--address={address}"]
            named = [f"--node-name={host.name}", f"--node-ip-address={host.address}"]
            _serve(servers, [*host.within, *start, *named, *how], hosts)
            _until_answered(hosts, nodes, with_=host.name)
        yield Way("ray", variables={"RAY_ADDRESS": address})


def _serve(servers: ExitStack, words: Sequence[object], hosts: Hosts) -> None:
    """Runs a server until the stack is left; what it says is in a log."""
    with (hosts.folder / "servers.log").open("ab") as log:
        server = subprocess.Popen(
            list(map(str, words)),
            env=os.environ | hosts.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    servers.callback(_end, server)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _until_answered(
    hosts: Hosts,
    words: Sequence[str],
    variables: Mapping[str, str] | None = None,
    with_: str = "",
) -> None:
    """Types that until it ends well and prints that text. Raises NotServedError."""
    until_s = time.monotonic() + _STARTS_WITHIN_S
    while (
        done := hosts.typed(words, **(variables or {}))
    ).returncode or with_ not in done.stdout:
        if time.monotonic() > until_s:
            raise NotServedError(f"{words[0]}: {done.stderr.strip()}")
        time.sleep(0.5)
