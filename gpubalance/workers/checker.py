"""A child that tries one thing after another, and a fresh one after each that died, hung or failed."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from gpubalance.errors import EnvironmentFault, PartialResult
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record
from gpubalance.workers.messages import Copied, Copy, Failed, Inspect, Inspected, Reduce, Reduced, Survey, Surveyed
from gpubalance.workers.process import Process, child_environment

if TYPE_CHECKING:
    from typing_extensions import Self

Reply = TypeVar("Reply", bound=Record)

LOADS_WITHIN_S = 180.0  # TensorFlow, from a slow disk, and the GPUs
_MOVES_WITHIN_S = 120.0


class Checker:
    """Asks children that see these devices. Use it as a context manager: the child ends with it.

    Every call raises DeadlinePassed, PartialResult or EnvironmentFault where the check could not be done. `deadline_s`,
    where it is given, is the longest silence that is waited out.
    """

    def __init__(self, devices: Sequence[Device], *, deadline_s: float | None = None) -> None:
        self._devices = tuple(devices)
        self._deadline_s = deadline_s
        self._process: Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def narrow(self, devices: Sequence[Device]) -> None:
        """From now on only these; where that is another set than before, in a fresh child."""
        if tuple(devices) != self._devices:
            self._end()
            self._devices = tuple(devices)

    def inspect(self) -> Inspected:
        """TensorFlow's build, and what loading its libraries gives."""
        return self._ask(Inspect(), Inspected, LOADS_WITHIN_S, "loading TensorFlow and its libraries")

    def survey(self) -> Surveyed:
        """Which of the GPUs TensorFlow can't use."""
        return self._ask(Survey(devices=self._devices), Surveyed, LOADS_WITHIN_S, "asking TensorFlow for its GPUs")

    def copy(self, source: int, target: int, nbytes: int) -> Copied:
        """Random data from one device to another."""
        names = f"{self._devices[source].label} to {self._devices[target].label}"
        request = Copy(devices=self._devices, source=source, target=target, nbytes=nbytes)
        return self._ask(request, Copied, self._patience_s(), f"copying from {names}")

    def reduce(self, nbytes: int) -> Reduced:
        """A sum of random data over all devices."""
        names = ", ".join(device.label for device in self._devices)
        request = Reduce(devices=self._devices, nbytes=nbytes)
        return self._ask(request, Reduced, self._patience_s(), f"summing over {names}")

    def _patience_s(self) -> float:
        """A child that is not there yet must load TensorFlow first."""
        return _MOVES_WITHIN_S + (LOADS_WITHIN_S if self._process is None else 0.0)

    def _ask(self, request: Record, wanted: type[Reply], within_s: float, doing: str) -> Reply:
        if self._process is None:
            self._process = Process("check", child_environment(self._devices))
        try:
            self._process.send(request)
            reply = self._process.receive(self._deadline_s or within_s, doing)
            if isinstance(reply, wanted):
                return reply
            raise self._fault(reply)
        except BaseException:
            self._end()  # what is left of a failed check may fail the next: it gets a child of its own
            raise

    def _fault(self, reply: Record) -> EnvironmentFault | PartialResult:
        assert self._process is not None  # noqa: S101  (it has just replied)
        log = self._process.log_tail()
        if not isinstance(reply, Failed):
            return PartialResult("the worker's message does not fit the request", log=log)
        remedy = reply.remedy or f"the worker's whole log is {self._process.log}"
        return EnvironmentFault(reply.message, cause=reply.cause, remedy=remedy, log=log)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
