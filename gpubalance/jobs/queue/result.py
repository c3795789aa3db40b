"""What has come of a queue's commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubalance.planning.queue import relative_times
from gpubalance.results.common import now
from gpubalance.results.queue import Queue, QueuedCommand, QueueShare, Try
from gpubalance.settings.device import Device

_LEAST_S = 1e-3  # its logarithm is taken


def ended_seconds(devices: int, commands: Iterable[QueuedCommand]) -> list[list[float]]:
    """The seconds of the commands that ended well on each device."""
    ended_s: list[list[float]] = [[] for _ in range(devices)]
    for command in commands:
        if command.ended_well and command.tries:
            last = command.tries[-1]
            ended_s[last.device].append(max(_LEAST_S, last.duration_s))
    return ended_s


def result_of(
    devices: tuple[Device, ...],
    commands: Sequence[QueuedCommand],
    rates: Sequence[float] | None,
    running_s: float | None,
) -> Queue:
    """The record of these commands.

    `rates` are what the devices gave alone, None if unknown. `running_s` is how long the queue has
    run, None if no command runs any more.
    """
    tries: list[Try] = []
    for command in commands:
        if not command.resumed:
            tries += command.tries
    makespan_s = running_s
    if makespan_s is None:
        makespan_s = max((attempt.end_s for attempt in tries), default=0.0)
    shares = _shares(
        relative_times(ended_seconds(len(devices), commands), rates), tries
    )
    alone_s = _alone_s(shares, tries)
    return Queue(
        created=now(),
        devices=devices,
        commands=tuple(commands),
        shares=shares,
        makespan_s=makespan_s,
        alone_s=alone_s,
        speedup=alone_s and alone_s / makespan_s,
        complete=all(command.ended_well for command in commands),
    )


def _shares(
    times: Sequence[float | None], tries: Sequence[Try]
) -> tuple[QueueShare, ...]:
    """What each device did; `times` are how long they take for the same command."""
    fastest = min(filter(None, times), default=0.0)
    shares = []
    for device, time in enumerate(times):
        own = [attempt for attempt in tries if attempt.device == device]
        share = QueueShare(
            device=device,
            ended_well=sum(attempt.exit == 0 for attempt in own),
            busy_s=sum(attempt.duration_s for attempt in own),
            speed=fastest / time if time else None,
        )
        shares.append(share)
    return tuple(shares)


def _alone_s(shares: Sequence[QueueShare], tries: Sequence[Try]) -> float | None:
    """How long the fastest device would have taken for what ended well; None if unknown."""
    alone_s = 0.0
    for attempt in tries:
        if attempt.exit == 0:
            speed = shares[attempt.device].speed
            if not speed or not attempt.duration_s:
                return None
            alone_s += speed * attempt.duration_s
    return alone_s or None
