"""Whose machine this is, which a result that is given to others must not tell."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """Home folders, account names and host names, the longest first, none empty."""

    homes: tuple[str, ...]
    users: tuple[str, ...]
    hosts: tuple[str, ...]


def identity() -> Identity:
    """Whose machine this process runs on. `root` and `localhost` tell nothing and are left out."""
    homes, users, hosts = set[str](), set[str](), set[str]()
    with contextlib.suppress(RuntimeError, OSError):  # an account without a home folder
        homes |= {os.fspath(Path.home()), os.fspath(Path.home().resolve())}
    with contextlib.suppress(KeyError):  # an account without a name, as in a container
        account = pwd.getpwuid(os.getuid())
        homes, users = homes | {account.pw_dir}, users | {account.pw_name}
    users |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    hosts |= {socket.gethostname(), socket.gethostname().partition(".")[0], os.environ.get("HOSTNAME", "")}
    return Identity(
        homes=_longest_first(homes - {"", "/"}),
        users=_longest_first(users - {"", "root"}),
        hosts=_longest_first(hosts - {"", "localhost"}),
    )


def _longest_first(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (-len(name), name)))
