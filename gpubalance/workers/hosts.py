"""What is done with other hosts as a whole: they are reached, and asked about themselves."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gpubalance.devices.hosts import are_reached, other_gpubalance, unreachable
from gpubalance.errors import DeadlinePassed, EnvironmentFault, GpubalanceError
from gpubalance.settings.device import Device, Host, hosts_of
from gpubalance.text import clean
from gpubalance.workers.messages import Ended, Printed
from gpubalance.workers.process import Process

_ANSWERS_WITHIN_S = 120.0  # loading TensorFlow from a slow disk included
_LONGEST = 1 << 24
_OURS = "import sys; sys.path[:] = filter(None, sys.path); from gpubalance.__main__ import main; main()"

Answer = TypeVar("Answer", bound=BaseModel)


@contextlib.contextmanager
def connected(devices: Sequence[Device]) -> Iterator[None]:
    """Holds a connection to each other host of these devices until the block ends.

    So ssh logs in once, before it is needed often, Ray gives these GPUs to nobody else, and each host's software is
    compared before anything starts. Raises EnvironmentFault.
    """
    gpus = Counter(device.host for device in devices if not device.simulated)
    with ExitStack() as held:
        hosts = hosts_of(devices) if are_reached() else ()
        for process in [held.enter_context(Process(f"host-{host}", host, gpus=gpus[host])) for host in hosts]:
            process.greeted()
        yield


def ask(
    words: Mapping[Host, Sequence[str]], kind: type[Answer], within_s: float = _ANSWERS_WITHIN_S
) -> dict[Host, Answer | EnvironmentFault]:
    """The record that `gpubalance` prints on each host with that host's words, or why there is none. All run at once.

    An interrupt ends all of them.
    """
    until_s = time.monotonic() + within_s
    with ThreadPoolExecutor(len(words)) as threads, ExitStack() as started:
        asked = [_started(host, said, started) for host, said in words.items()]
        found = threads.map(lambda host, one: _answer(host, one, kind, until_s), words, asked)
        return dict(zip(words, found, strict=True))


def _started(host: Host, words: Sequence[str], ended: ExitStack) -> Process | EnvironmentFault:
    try:
        process = ended.enter_context(Process(f"ask-{host}", host))
    except EnvironmentFault as error:
        return error
    process.start({}, ["-c", _OURS, *words])
    return process


def _answer(
    host: Host, process: Process | EnvironmentFault, kind: type[Answer], until_s: float
) -> Answer | EnvironmentFault:
    if isinstance(process, EnvironmentFault):
        return process
    printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
    length = 0
    try:
        while isinstance(said := process.message(max(0.0, until_s - time.monotonic()), "being asked"), Printed):
            printed[said.stream].append(said.text)
            length += len(said.text)
            if length > _LONGEST:
                return unreachable(host, f"prints {_LONGEST >> 20} MiB and more")
    except EnvironmentFault as error:
        return error
    except DeadlinePassed:
        return unreachable(host, "did not answer in time")
    except GpubalanceError as error:
        return EnvironmentFault(error.message, remedy=error.remedy, log=error.log)
    try:
        return kind.model_validate(dict(json.loads("\n".join(printed["stdout"]))))
    except ValidationError:
        return other_gpubalance(host)
    except (ValueError, TypeError, RecursionError):
        own = [line.removeprefix("error: ") for line in printed["stderr"] if line.startswith("error: ")]
        if own:  # the gpubalance there reports an error
            return EnvironmentFault(f"{host}: {clean(own[0], 500)}")
        last = "".join(f": {clean(line, 200)}" for line in printed["stderr"][-1:])
        code = said.code if isinstance(said, Ended) else None
        return unreachable(host, f"ended with exit code {code}{last}")
