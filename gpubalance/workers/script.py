"""A training script's process, on another host or here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from gpubalance.devices.cluster import tf_config
from gpubalance.errors import BadInput, PartialResult
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device
from gpubalance.workers.environment import worker_environment
from gpubalance.workers.messages import Ended, Printed
from gpubalance.workers.process import Process

# Called with a line, the label of the process that printed it, and the stream.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]


class Script(Process):
    """A process for a script with these devices, all on one host."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__("script", devices[0].host)
        self._devices = devices

    def run(self, command: Sequence[str], cluster: Cluster | None) -> None:
        """Starts the script `command`, with its words, at its place in the cluster."""
        self._name = command[0]
        place = tf_config(cluster) if cluster else {}
        self.start({**worker_environment(self._devices), **place}, command)

    def code(self, tell: Tell) -> int:
        """Passes on what the process prints until it ends, and returns its exit code as shells have it.

        Raises PartialResult if its host is lost, and BadInput if that has no such script.
        """
        label = ", ".join(device.label for device in self._devices)
        try:
            while isinstance(message := self.message(math.inf, "training"), Printed):
                tell(message.text, label, message.stream)
        except PartialResult as error:
            error.remedy += " all its processes have been ended"
            raise
        if not isinstance(message, Ended):
            raise self.unreadable("no script says that")
        if message.missing is not None:
            raise BadInput(
                f"{self._devices[0].host or 'this host'} has no script {self._name} in {message.missing}",
                remedy="the script, and what it reads, must be in the same folder on each host",
            )
        return message.code if message.code >= 0 else 128 - message.code

    def signal(self, number: int) -> None:
        """Sends the process that signal; it is killed a moment later."""
        self.write(b"%d" % number)
