"""Programs on hosts that are no workers: training scripts, and gpubalance itself, which is asked
about its host.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.devices.hosts import are_reached, other_gpubalance, unreachable
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError
from gpubalance.settings.cluster import Cluster, tf_config
from gpubalance.settings.device import Device, Host, hosts_of
from gpubalance.text import clean
from gpubalance.workers.messages import FromScript, Printed
from gpubalance.workers.process import Process, worker_environment

_ANSWERS_WITHIN_S = 120.0  # loading TensorFlow from a slow disk included
_OURS = (
    "import sys; sys.path[:] = filter(None, sys.path); from gpubalance.__main__ import main; main()"
)

Answer = TypeVar("Answer", bound=BaseModel)
# Called with a line, the label of the process that printed it, and the stream.
Tell = Callable[[str, str, Literal["stdout", "stderr"]], None]


@contextlib.contextmanager
def connected(devices: Sequence[Device]) -> Iterator[None]:
    """Holds a connection to each other host of these devices until the block ends.

    So ssh logs in once, before it is needed often, Ray gives these GPUs to nobody else, and each
    host's software is compared before anything starts. Raises EnvironmentFault.
    """
    gpus = Counter(device.host for device in devices if not device.simulated)
    with ExitStack() as held:
        hosts = hosts_of(devices) if are_reached() else ()
        for process in [
            held.enter_context(Process(f"host-{host}", host, gpus=gpus[host])) for host in hosts
        ]:
            process.greeted()
        yield


class Script(Process):
    """A process for a training script with these devices, all on one host."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__("script", devices[0].host)
        self._devices = devices

    def run(self, command: Sequence[str], cluster: Cluster | None) -> None:
        """Starts the script `command`, with its words, at its place in the cluster."""
        place = tf_config(cluster) if cluster else {}
        self.start({**worker_environment(self._devices), **place}, command)

    def code(self, tell: Tell) -> int:
        """Passes on what the process prints until it ends, and returns its exit code as shells have
        it.

        Raises PartialResult if its host is lost.
        """
        label = ", ".join(device.label for device in self._devices)
        while isinstance(said := self.message(math.inf, "training", FromScript), Printed):
            tell(said.text, label, said.stream)
        code: int = said.code
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Sends the process that signal; it is killed a moment later."""
        self._requests.put(b"%d" % number)


def ask(
    words: Mapping[Host, Sequence[str]], kind: type[Answer], within_s: float = _ANSWERS_WITHIN_S
) -> dict[Host, Answer | EnvironmentFault]:
    """The record that `gpubalance` prints on each host with that host's words, or why there is
    none. All run at once.

    The record names its `host`. An interrupt ends all of them.
    """
    until_s = time.monotonic() + within_s
    with ThreadPoolExecutor(len(words)) as threads, ExitStack() as started:
        asked = [started.enter_context(Process(f"ask-{host}", host)) for host in words]
        for process, said in zip(asked, words.values(), strict=True):
            process.start({}, ["-c", _OURS, *said])
        found = threads.map(
            lambda host, process: _answer(host, process, kind, until_s), words, asked
        )
        return dict(zip(words, found, strict=True))


def _answer(
    host: Host, process: Process, kind: type[Answer], until_s: float
) -> Answer | EnvironmentFault:
    printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
    try:
        while isinstance(
            said := process.message(until_s - time.monotonic(), "being asked", FromScript), Printed
        ):
            printed[said.stream].append(said.text)
    except DeadlinePassed:
        return unreachable(host, "did not answer in time")
    except GpubalanceError as error:
        return EnvironmentFault(error.message, remedy=error.remedy, log=error.log)
    try:
        return kind.model_validate({**json.loads("\n".join(printed["stdout"])), "host": host})
    except ValidationError:
        return other_gpubalance(host)
    except (ValueError, TypeError, RecursionError):
        own = [
            line.removeprefix("error: ") for line in printed["stderr"] if line.startswith("error: ")
        ]
        if own:  # the gpubalance there reports an error
            return EnvironmentFault(f"{host}: {clean(own[0], 500)}")
        last = "".join(f": {clean(line, 200)}" for line in printed["stderr"][-1:])
        return unreachable(host, f"ended with exit code {said.code}{last}")
