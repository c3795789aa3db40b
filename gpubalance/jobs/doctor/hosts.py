"""`doctor` on several hosts: each checks itself, all at once."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import EnvironmentFault, Interrupted, UsageError
from gpubalance.jobs.doctor.check import failed
from gpubalance.jobs.doctor.ways import check_ways
from gpubalance.jobs.events import Doing, Watch
from gpubalance.results.checkup import Check, Checkup, Checkups
from gpubalance.results.common import now
from gpubalance.settings.device import Host
from gpubalance.workers.hosts import ask

# A healthy host takes a minute; a step that hangs has its deadline on the host
_WITHIN_S = 900.0


def doctor_of(
    hosts: Sequence[Host],
    words: Sequence[str],
    gpus: Sequence[str] | None,
    watch: Watch,
) -> Checkups:
    """What `gpubalance doctor` with these words finds on each host.

    Of `gpus`, `alpha:0` is GPU 0 of alpha; hosts without one are left out then. Faults, an
    unreachable host among them, are in the result. Raises UsageError for a device on none of the
    hosts.
    """
    options = _options(hosts, gpus)
    check = "check themselves" if len(options) > 1 else "checks itself"
    watch(Doing(f"{', '.join(options)} {check}"))
    commands = {
        host: ["doctor", "--json", *words, *own] for host, own in options.items()
    }
    try:
        answers = ask(commands, Checkup, _WITHIN_S)
        well = [host for host, answer in answers.items() if isinstance(answer, Checkup)]
        between = check_ways(well, watch) if well else {}
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, remedy="nothing is known yet") from None
    checkups = []
    for host, answer in answers.items():
        if isinstance(answer, EnvironmentFault):
            checks: tuple[Check, ...] = (failed("host", answer),)
            answer = Checkup(created=now(), host=host, devices=(), checks=checks)
        else:
            checks = (*answer.checks, *between.get(host, ()))
            answer = answer.model_copy(update={"checks": checks})
        checkups.append(answer)
    return Checkups(created=now(), hosts=tuple(checkups))


def _options(
    hosts: Sequence[Host], gpus: Sequence[str] | None
) -> dict[Host, list[str]]:
    """The option that names each host's own GPUs; all hosts without one if none are named."""
    if not gpus:
        return {host: [] for host in hosts}
    options: dict[Host, list[str]] = {}
    for name in gpus:
        host, _, number = name.rpartition(":")
        if host not in hosts:
            raise UsageError(
                f"there is no device {name!r} on {', '.join(hosts)}",
                remedy=f"such as {hosts[0]}:0",
            )
        options.setdefault(host, ["--gpus"]).append(number)
    return options
