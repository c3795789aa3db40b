"""The controller's side of a worker on another host, with the interface of a process here."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.devices.hosts import are_reached
from gpubalance.errors import GpubalanceError, PartialResult
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.record import Record
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.agents import connection_to
from gpubalance.workers.code import code_key
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.messages import AnyReply, Open
from gpubalance.workers.process import TAKES_WITHIN_S, Process


def process_of(devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> Process:
    """A worker's process with these devices, all on one host. Raises EnvironmentFault if it can't start."""
    if are_reached() and devices[0].host is not None:
        return Elsewhere(devices, purpose, limit)
    return Process(purpose, worker_environment(devices), limit)


class Elsewhere(Process):
    """A worker's process on another host, held by the agent there.

    Waiting for its reply raises EnvironmentFault if the host can't be reached or has other software, and PartialResult
    if it is lost: its agent no longer says every few seconds that it lives.
    """

    def __init__(self, devices: Sequence[Device], purpose: str, limit: TimeLimit = NO_LIMIT) -> None:
        (self._host,), self._devices = hosts_of(devices), devices
        super().__init__(purpose, {}, limit)

    def _start(self) -> None:
        self._connection = connection_to(self._host, sum(not device.simulated for device in self._devices))
        self._there = self._connection.start(self._devices, log=self.log)

    @property
    def lives(self) -> bool:
        """Whether neither the worker nor the connection has ended."""
        return not self._there.has_ended.is_set()

    def send(self, request: Record, within_s: float = TAKES_WITHIN_S) -> None:
        """Like a process here, and adds the hash of the user's own code: the other host must have the same."""
        if isinstance(request, Open) and request.code is None:
            request = request.model_copy(update={"code": code_key(request.settings.model, request.settings.data)})
        super().send(request, within_s)

    def write(self, line: bytes, within_s: float = TAKES_WITHIN_S) -> None:  # noqa: ARG002
        """Like a process here; what the worker does not read at once waits at the agent."""
        self._there.ask(line)

    def receive(self, within_s: float, doing: str) -> AnyReply:
        """Like a process here. The time until its host is reached does not count."""
        self._connection.meet(self._limit)
        return super().receive(within_s, doing)

    def _chunk(self, within_s: float) -> bytes | None:
        try:
            said = self._there.said(within_s)
        except GpubalanceError as error:
            error.log = self.log_tail() or error.log
            if isinstance(error, PartialResult):
                error.remedy += " --resume goes on with what was measured"
            raise
        return said and said[1]

    def _exit_code(self) -> int | None:
        return self._there.code

    def kill(self) -> None:
        """Like a process here: the agent kills it, if the agent still listens."""
        self._there.kill()

    def _end(self) -> None:
        if self._connection.holds_nothing:  # a prefix may be slow, and this program's end must not wait for it
            self._connection.give_up("it was not waited for")
        elif not self._there.end():
            self._connection.give_up("a process there does not end")
