"""A process of a training script, from the controller's side: an agent on its host holds it, or one here."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from io import IncrementalNewlineDecoder
from typing import Literal

from gpubalance.errors import PartialResult
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.workers.agents import connection_to
from gpubalance.workers.wire import ERRORS, OUT

# Called with a line, the label of the process that printed it, and where.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]

_LONGEST_LINE = 1 << 20  # characters; what has no end is told in pieces


class Script:
    """The process with these devices, which are on one host, in its place of the cluster."""

    def __init__(self, devices: Sequence[Device], command: Sequence[str], cluster: Cluster | None, tell: Tell) -> None:
        label = ", ".join(device.label for device in devices)
        self._there = connection_to(devices[0].host).start(devices, command=command, cluster=cluster)
        self._streams = {
            OUT: _Lines(lambda line: tell(line, label, "stdout")),
            ERRORS: _Lines(lambda line: tell(line, label, "stderr")),
        }

    def code(self) -> int:
        """Its exit code, as shells have it, once it has ended; passes on until then what it prints.

        Raises PartialResult where its host is lost.
        """
        try:
            while (said := self._there.said()) and said[1]:
                self._streams[said[0]].take(said[1])
        except PartialResult as error:
            error.remedy += " all its processes have been ended"
            raise
        for lines in self._streams.values():
            lines.end()
        code = self._there.code or 0
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """It gets that signal, and a moment to end by it."""
        self._there.signal(number)


class _Lines:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._rest = tell, ""
        self._decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True)

    def take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            self._tell(line)

    def end(self) -> None:
        if rest := self._rest + self._decoder.decode(b"", final=True):
            self._tell(rest)
