"""The controller's side of a training script's process: an agent holds it, on its host or here."""

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

# Called with a line, the label of the process that printed it, and the stream.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]

_LONGEST_LINE = 1 << 20  # characters; longer lines are passed on in pieces


class Script:
    """Runs the command with these devices, all on one host, at its place in the cluster."""

    def __init__(self, devices: Sequence[Device], command: Sequence[str], cluster: Cluster | None, tell: Tell) -> None:
        label = ", ".join(device.label for device in devices)
        self._there = connection_to(devices[0].host).start(devices, command=command, cluster=cluster)
        self._streams = {
            OUT: _Lines(lambda line: tell(line, label, "stdout")),
            ERRORS: _Lines(lambda line: tell(line, label, "stderr")),
        }

    def code(self) -> int:
        """Passes on what the process prints until it ends, and returns its exit code as shells have it.

        Raises PartialResult if its host is lost.
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
        """Sends the process that signal, and kills it a moment later."""
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
