"""Programs on hosts that are no workers: training scripts, and gpubalance itself."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.devices.environment import worker_environment
from gpubalance.devices.hosts import are_reached, other_gpubalance, unreachable
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError
from gpubalance.programs import REACHING
from gpubalance.settings.cluster import Address, Cluster, tf_config
from gpubalance.settings.device import Device, Host, hosts_of
from gpubalance.settings.record import Record
from gpubalance.settings.requests import LaunchedSplit, TrainingProgress
from gpubalance.text import clean
from gpubalance.workers.process import Ended, FromScript, Process

_ANSWERS_WITHIN_S = 120.0  # loading TensorFlow from a slow disk included
_LONGER = (
    "allow more time, --deadline SECONDS, or check the host's device, data and network"
)
_OURS = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from gpubalance.__main__ import main; main()"
)


class Ways(Record):
    """A host's clock, the address where others should reach it, and why it does not reach theirs.

    `reaching` prints it.
    """

    host: Host
    address: Address
    clock_s: float
    unreached: dict[Address, str]


Answer = TypeVar("Answer", bound=BaseModel)
# Called with a line, the label of the process that printed it, and the stream.
Report = Callable[[str, str, Literal["stdout", "stderr"]], None]


@contextlib.contextmanager
def connected(devices: Sequence[Device]) -> Iterator[None]:
    """Holds a connection to each other host of these devices until the block ends.

    So ssh logs in once, before it is needed often, Ray gives these GPUs to nobody else, and each
    host's software is compared before anything starts. Raises EnvironmentFault.
    """
    hosts = hosts_of(devices) if are_reached() else ()
    gpus = Counter(device.host for device in devices if not device.simulated)
    with ExitStack() as stack:
        processes = []
        for host in hosts:
            process = Process(f"host-{host}", host, gpus=gpus[host])
            processes.append(stack.enter_context(process))
        for process in processes:
            process.greeted()
        yield


class Script(Process):
    """A process for a training script with these devices, all on one host."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__("script", devices[0].host)
        self._devices = devices
        self.label = ", ".join(device.label for device in devices)
        self.progress = TrainingProgress()

    def run(
        self,
        command: Sequence[str],
        cluster: Cluster | None,
        launched: LaunchedSplit | None = None,
    ) -> None:
        """Starts the script `command`, with its words, at its place in the cluster."""
        environment = worker_environment(self._devices)
        if launched is not None:
            environment.update(launched.environment)
        if cluster is not None:
            environment.update(tf_config(cluster))
        self.start(environment, command)

    def code(
        self,
        report: Report,
        reported: Callable[[TrainingProgress], None] = lambda _: None,
        deadline_s: float | None = None,
    ) -> int:
        """Passes on what the process prints until it ends; returns its exit code as shells have it.

        Also passes on the progress that it reports. Raises PartialResult if its host is lost, and
        DeadlinePassed if a step is awaited for longer than the deadline.
        """
        until_s = math.inf
        while True:
            try:
                message = self.message(
                    until_s - time.monotonic(), "training", FromScript
                )
            except DeadlinePassed:
                raise DeadlinePassed(
                    f"no step finished for {deadline_s:g} s", remedy=_LONGER
                ) from None
            if isinstance(message, Ended):
                return message.code if message.code >= 0 else 128 - message.code
            if message.stream != "report":
                report(message.text, self.label, message.stream)
                continue
            self.progress = TrainingProgress.model_validate_json(message.text)
            reported(self.progress)
            until_s = math.inf
            if deadline_s is not None and self.progress.awaited:
                until_s = time.monotonic() + deadline_s

    def signal(self, number: int) -> None:
        """Sends the process that signal; it is killed a moment later."""
        self._requests.put(b"%d" % number)


def ask(
    words: Mapping[Host, Sequence[str]],
    kind: type[Answer],
    within_s: float = _ANSWERS_WITHIN_S,
) -> dict[Host, Answer | EnvironmentFault]:
    """The record that `gpubalance` prints on each host with that host's words, or why not.

    All run at once. The record names its `host`. An interrupt ends all of them.
    """

    def commands(processes: Mapping[Host, Process]) -> dict[Host, list[str]]:
        return {host: ["-c", _OURS, *words[host]] for host in processes}

    return _all_answer(words, commands, kind, within_s)


def try_ways(hosts: Sequence[Host]) -> dict[Host, Ways | EnvironmentFault]:
    """What each host says of its clock and of its ways to the others.

    Raises EnvironmentFault if one can't be reached from here.
    """
    return _all_answer(hosts, _reaching_the_others, Ways, _ANSWERS_WITHIN_S)


def _reaching_the_others(processes: Mapping[Host, Process]) -> dict[Host, list[str]]:
    addresses = {host: process.greeted().address for host, process in processes.items()}
    commands = {}
    for own, address in addresses.items():
        others = [there for host, there in addresses.items() if host != own]
        commands[own] = [REACHING, address, *others]
    return commands


def _all_answer(
    hosts: Collection[Host],
    commands: Callable[[Mapping[Host, Process]], Mapping[Host, list[str]]],
    kind: type[Answer],
    within_s: float,
) -> dict[Host, Answer | EnvironmentFault]:
    """The record that each host's command prints, given to a process there, or why not."""
    until_s = time.monotonic() + within_s
    with ThreadPoolExecutor(len(hosts)) as threads, ExitStack() as stack:
        processes = {
            host: stack.enter_context(Process(f"ask-{host}", host)) for host in hosts
        }
        for host, words in commands(processes).items():
            processes[host].start({}, words)
        answers = threads.map(
            lambda host: _answer(host, processes[host], kind, until_s), processes
        )
        return dict(zip(processes, answers, strict=True))


def _answer(
    host: Host, process: Process, kind: type[Answer], until_s: float
) -> Answer | EnvironmentFault:
    printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
    try:
        code = _collect(process, printed, until_s)
    except DeadlinePassed:
        return unreachable(host, "did not answer in time")
    except GpubalanceError as error:
        return EnvironmentFault(
            error.message, cause=error.cause, remedy=error.remedy, log=error.log
        )
    try:
        return kind.model_validate(
            {**json.loads("\n".join(printed["stdout"])), "host": host}
        )
    except ValidationError:
        return other_gpubalance(host)
    except (ValueError, TypeError, RecursionError):
        return _no_record(host, printed["stderr"], code)


def _collect(process: Process, printed: dict[str, list[str]], until_s: float) -> int:
    """Adds the lines of each stream to `printed`. Returns the exit code."""
    while True:
        message = process.message(until_s - time.monotonic(), "being asked", FromScript)
        if isinstance(message, Ended):
            return message.code
        printed[message.stream].append(message.text)


def _no_record(host: Host, lines: Sequence[str], code: int) -> EnvironmentFault:
    """The error for what the gpubalance there has printed on stderr instead."""
    for line in lines:
        if line.startswith("error: "):
            return EnvironmentFault(
                f"{host}: {clean(line.removeprefix('error: '), 500)}"
            )
    how = f"ended with exit code {code}"
    if lines:
        how += f": {clean(lines[-1], 200)}"
    return unreachable(host, how)
