"""`doctor` of several hosts: each checks itself."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import EnvironmentFault, Interrupted, UsageError
from gpubalance.jobs.doctor.topic import failed
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.checkup import Checkup, Checkups
from gpubalance.results.common import now
from gpubalance.settings.device import Host
from gpubalance.workers.hosts import ask

_WITHIN_S = 900.0  # a healthy host takes a minute; a step that hangs has its deadline on the host


def doctor_of(hosts: Sequence[Host], words: Sequence[str], gpus: Sequence[str] | None, watch: Watch) -> Checkups:
    """What `gpubalance doctor` with these words finds on each host, run on all at once; `alpha:0` is GPU 0 of alpha.

    Faults, an unreachable host among them, are in the result. Raises UsageError for a device on none of the hosts.
    """
    named = _named(hosts, gpus)
    watch(Doing(f"{', '.join(named)} {'check themselves' if len(named) > 1 else 'checks itself'}"))
    try:
        answers = ask({host: ["doctor", "--json", *words, *own] for host, own in named.items()}, Checkup, _WITHIN_S)
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing is known yet") from None
    return Checkups(created=now(), hosts=tuple(_checkup(host, answer) for host, answer in answers.items()))


def _named(hosts: Sequence[Host], gpus: Sequence[str] | None) -> dict[Host, list[str]]:
    """The hosts to ask, each with its own part of --gpus."""
    if gpus is None:
        return {host: [] for host in hosts}
    named: dict[Host, list[str]] = {}
    for one in gpus:
        host, _, number = one.rpartition(":")
        if host not in hosts:
            raise UsageError(f"there is no device {one!r} on {', '.join(hosts)}", remedy=f"such as {hosts[0]}:0")
        named.setdefault(host, ["--gpus"]).append(number)
    return named


def _checkup(host: Host, answer: Checkup | EnvironmentFault) -> Checkup:
    if isinstance(answer, EnvironmentFault):
        return Checkup(created=now(), host=host, devices=(), checks=(failed("host", answer),))
    return answer.model_copy(update={"host": host})
