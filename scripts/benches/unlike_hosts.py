"""Hosts of this machine that are really unlike: each has a part of a core, and a link of a rate."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.benches.namespaces import address_of, hosts_with_links
from scripts.benches.quotas import group_with, joining, pids_in
from tests.support.made import made


@dataclass(frozen=True)
class Host:
    """A network namespace, and the group of processes whose quota makes it slow."""

    name: str
    address: str
    cores: float
    core: int
    group: Path

    @property
    def slowed(self) -> list[str]:
        """The words before a command that give it the host's part of a core."""
        return [*joining(self.group), "taskset", "-c", str(self.core)]

    @property
    def within(self) -> list[str]:
        """The words before a command that run it on the host."""
        return [*self.slowed, "ip", "netns", "exec", self.name]


@dataclass(frozen=True)
class Left:
    """Processes, sockets that listen, and files in the folders of who types commands."""

    processes: frozenset[str]
    sockets: frozenset[str]
    files: frozenset[str]

    def __sub__(self, other: Left) -> Left:
        """What is here and not there."""
        return Left(
            self.processes - other.processes,
            self.sockets - other.sockets,
            self.files - other.files,
        )

    def __str__(self) -> str:
        """The names of all."""
        all_ = (*sorted(self.processes), *sorted(self.sockets), *sorted(self.files))
        return ", ".join(all_) or "no process, socket or file"


@dataclass(frozen=True)
class Hosts:
    """The hosts, and who types commands on the first one, without a quota."""

    all: Sequence[Host]
    group: Path
    # For all files of what runs on them; `home` takes the place of ~/.ssh there
    folder: Path
    variables: dict[str, str]

    @property
    def names(self) -> str:
        """As `--hosts` takes them."""
        return ",".join(host.name for host in self.all)

    def typed(
        self, words: Sequence[str], **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the first host as a user there, with these variables besides."""
        return subprocess.run(
            [*self._prefix(), *words],
            env=os.environ | self.variables | variables,
            cwd=self.folder / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _prefix(self) -> list[str]:
        """Whoever types has what the slower hosts leave of the last core."""
        last = max(host.core for host in self.all)
        own = f'mount --bind {self.folder}/home {_ssh_folder()} && exec "$@"'
        here = [*joining(self.group), "taskset", "-c", str(last)]
        return [*here, "ip", "netns", "exec", self.all[0].name, "sh", "-c", own, "sh"]

    def left(self) -> Left:
        """What is there now."""
        groups = [self.group, *(host.group for host in self.all)]
        processes = {_name_of(pid) for group in groups for pid in pids_in(group)}
        sockets = {socket for host in self.all for socket in _listening(host.name)}
        files = {
            str(path)
            for name in ("tmp", "work")
            for path in (self.folder / name).rglob("*")
        }
        return Left(frozenset(processes), frozenset(sockets), frozenset(files))


@contextmanager
def unlike_hosts(parts: Sequence[float], rate: str, folder: Path) -> Iterator[Hosts]:
    """A host for each part of a core, in an order of which each core of this machine takes some.

    They know each other by name. All is gone afterwards, whatever happens. Raises
    NoNamespacesError and NoQuotasError.
    """
    cores = sorted(os.sched_getaffinity(0))
    for name in ("home", "tmp", "work", "state"):
        (folder / name).mkdir()
    with ExitStack() as undo:
        names = undo.enter_context(hosts_with_links(*[rate] * len(parts)))
        them = []
        for number, (name, part) in enumerate(zip(names, parts, strict=True)):
            group = undo.enter_context(group_with(name, part))
            core = cores[min(number, len(cores) - 1)]
            them.append(Host(name, address_of(name), part, core, group))
        user = undo.enter_context(group_with(f"{names[0]}-user", None))
        _know_each_other(them, undo)
        undo.enter_context(made(_ssh_folder()))
        yield Hosts(them, user, folder, _variables(folder))


def _name_of(pid: int) -> str:
    """The process's id and command; its id alone if it has just ended."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}"
    except OSError:
        return str(pid)


def _listening(host: str) -> Iterator[str]:
    shown = subprocess.check_output(
        ["ip", "netns", "exec", host, "ss", "-Htln"], text=True
    )
    for line in shown.splitlines():
        yield f"{host} {line.split()[3]}"


def _know_each_other(hosts: Sequence[Host], undo: ExitStack) -> None:
    """`ip netns exec` puts these files in the place of those in /etc."""
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    undo.enter_context(made(Path("/etc/netns")))
    for host in hosts:
        own = undo.enter_context(made(Path("/etc/netns") / host.name))
        (own / "hosts").write_text("\n".join(lines) + "\n")
        undo.callback((own / "hosts").unlink)


def _ssh_folder() -> Path:
    return Path.home() / ".ssh"


def _variables(folder: Path) -> dict[str, str]:
    """So that what commands leave behind is seen, and nothing of the user's is changed."""
    return {"TMPDIR": str(folder / "tmp"), "XDG_STATE_HOME": str(folder / "state")}
