"""A process of a training script, from the controller's side, on this host or behind a prefix on another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from gpubalance.devices.hosts import command_on, own_program, unreachable
from gpubalance.errors import BadInput, EnvironmentFault, GpubalanceError, PartialResult, UsageError
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, hosts_of
from gpubalance.system.state import current_folder
from gpubalance.text import clean
from gpubalance.workers.agent import MARK, Ended, Hello, Listens
from gpubalance.workers.elsewhere import ANSWERS_WITHIN_S, ENDS_WITHIN_S, LOST_S
from gpubalance.workers.launched import PLACE, SAYS, SCRIPTS, Absent, Begin
from gpubalance.workers.pipes import readable

# Called with a line, the label of the process that printed it, and where.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]

_PROGRAM = "gpubalance.workers.launched"
_LAST_LINES_S = 1.0


class Script:
    """The process with these devices, which are on one host. What ends its connection ends it too.

    Raises EnvironmentFault where nothing can be started here.
    """

    def __init__(self, devices: Sequence[Device], command: Sequence[str], tell: Tell) -> None:
        (host,) = hosts_of(devices)
        behind = command_on(host, _PROGRAM, gpus=sum(not device.simulated for device in devices))
        self._host = host if behind else None
        self.label = ", ".join(device.label for device in devices)
        self._script, self._tell = command[0], tell
        self._buffer = b""
        self._is_lost = False
        try:
            self._process = subprocess.Popen(  # noqa: S603  (no shell; the prefix is the user's own)
                behind or own_program(_PROGRAM),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise UsageError(f"--via: there is no command {(behind or [''])[0]!r}") from None
        except OSError as error:
            if self._host is not None:
                raise unreachable(self._host, f"can't be run: {error.strerror}") from None
            raise EnvironmentFault(f"can't start {command[0]}: {error.strerror}") from None
        self._errors = threading.Thread(target=self._pass_errors_on, daemon=True)
        self._errors.start()
        begin = Begin(host=self._host, devices=tuple(devices), folder=str(current_folder()), command=tuple(command))
        self._write(begin.model_dump_json().encode())

    def listens(self) -> str:
        """Where it may listen. Raises EnvironmentFault where the host can't be reached or has other software.

        BadInput where it has no such script. What else comes before is a shell's greeting.
        """
        end = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            line = self._line(end - time.monotonic())
            if not line:
                raise self._unreachable(line)
            said = self._said(line)
            if isinstance(said, Hello) and self._host is not None:
                said.installed.check(self._host)
            elif isinstance(said, Listens):
                return said.address
            elif isinstance(said, Absent):
                raise BadInput(
                    f"{self._on} has no script {self._script} in {said.folder}",
                    remedy="the script, and what it reads, must be in the same folder on each host",
                )

    def begin(self, cluster: Cluster | None) -> None:
        """The script begins, in that place."""
        self._write(PLACE.dump_json(cluster))

    def code(self) -> int:
        """Its exit code, as shells have it, once it has ended; passes on until then what it prints.

        Raises PartialResult where its host is lost.
        """
        while True:
            line = self._line(LOST_S)
            if not line:
                how = f"nothing has come from it for {LOST_S:g} s" if line is None else "the connection ended"
                raise self._lost(how)
            if line.startswith(SCRIPTS):
                self._tell(line.removeprefix(SCRIPTS).decode(errors="replace"), self.label, "stdout")
                continue
            said = self._said(line)
            if isinstance(said, Ended):
                self._errors.join(_LAST_LINES_S)  # what it has started may hold its end of the pipe
                code = said.code or 0
                return code if code >= 0 else 128 - code

    def beat(self) -> None:
        """Tells that the controller lives."""
        self._write(MARK)

    def pass_on(self, number: int) -> None:
        """The script gets that signal, and a moment to end by it."""
        self._write(MARK + b"%d" % number)

    def let_go(self) -> None:
        """It ends soon."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]

    def end(self) -> None:
        """Ends it, and does not return before the connection is gone."""
        self.let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._is_lost else ENDS_WITHIN_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def _on(self) -> str:
        return self._host or "this host"

    def _write(self, line: bytes) -> None:
        """That nobody reads any more is noticed where the answer is read."""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line + b"\n")  # type: ignore[union-attr]

    def _line(self, within_s: float) -> bytes | None:
        """The next line; b"" at the end of all, None where nothing came for so long."""
        stdout: Any = self._process.stdout
        while b"\n" not in self._buffer:
            if not readable(stdout.fileno(), within_s):
                return None
            chunk = stdout.read(1 << 16)
            if not chunk:
                return b""
            self._buffer = (self._buffer + chunk).lstrip(b"\n")
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._buffer = self._buffer.lstrip(b"\n")
        return line

    def _said(self, line: bytes) -> object:
        """What the other end says; None for a beat, and for what is not its own."""
        if not line.startswith(MARK + b"{"):
            return None
        try:
            return SAYS.validate_json(line.removeprefix(MARK))
        except ValidationError as error:
            raise PartialResult(f"what comes from {self._on} is not readable: {clean(str(error))}") from None

    def _unreachable(self, line: bytes | None) -> GpubalanceError:
        how = f"did not answer within {ANSWERS_WITHIN_S:g} s"
        if line is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            how = f"ended with exit code {self._process.returncode}"
        if self._host is None:
            return EnvironmentFault(f"the process of {self.label} {how}, before {self._script} began")
        return unreachable(self._host, how)

    def _lost(self, how: str) -> PartialResult:
        self._is_lost = True
        return PartialResult(
            f"{self._host or self.label} is lost: {how}",
            remedy="is the host up, and its network? all its processes have been ended",
        )

    def _pass_errors_on(self) -> None:
        stderr: Any = self._process.stderr
        with open(stderr.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
            for line in lines:
                self._tell(line.rstrip("\n"), self.label, "stderr")
