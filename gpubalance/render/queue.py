"""A queue of commands as text: what runs, what has ended, and the summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from rich.text import Text

from gpubalance.render.fields import device_grid, names_of
from gpubalance.render.table import BLANK, WIDTH, Part, TextTable, shorten
from gpubalance.results.queue import Queue, QueuedCommand, RunningCommand
from gpubalance.settings.device import Device
from gpubalance.text import clean

_LONGEST = 200
_PRECISE_S = 100


def length_text(seconds: float) -> str:
    """`4.0 s`, and `0:02:05` for longer ones."""
    return f"{seconds:.1f} s" if seconds < _PRECISE_S else str(timedelta(seconds=round(seconds)))


def begun_text(device: Device, command: QueuedCommand) -> str:
    """`001 begins on GPU:0: python train.py`."""
    return f"{command.number:03} begins on {device.label}: {clean(command.command, _LONGEST)}"


def ended_text(device: Device, command: QueuedCommand, next_on: Device | None) -> str:
    """`001 ended on GPU:0 after 4.0 s: python train.py`; with the exit code if it failed."""
    last = command.tries[-1]
    how = "ran out of memory" if last.out_of_memory else "failed" if last.exit else "ended"
    code = f", exit {last.exit}" if last.exit else ""
    again = f"; once more on {next_on.label}, which has more" if next_on else ""
    after = f"after {length_text(last.duration_s)}{code}{again}"
    return (
        f"{command.number:03} {how} on {device.label} {after}: {clean(command.command, _LONGEST)}"
    )


def running_lines(
    devices: Sequence[Device], running: Sequence[RunningCommand], width: int, height: int
) -> list[Text]:
    """Each device: what it runs, since when, and below it the last line that this printed, if there
    is room.
    """
    now_s, by_device = time.monotonic(), {one.device: one for one in running}
    label_width = max(len(device.label) for device in devices)
    lines = []
    for number, device in enumerate(devices):
        one, label = by_device.get(number), f"{device.label:<{label_width}}"
        if one is None:
            lines.append(Text(f"{label}  idle", "dim"))
            continue
        since = f"{timedelta(seconds=int(now_s - one.began_s))!s:>8}"
        head = f"{label}  {one.command.number:03}  {since}  "
        lines.append(Text(head + clean(one.command.command, _LONGEST)))
        if one.last and height >= 2 * len(devices):
            lines.append(Text(" " * (label_width + 2) + one.last, "dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")  # by the columns that it takes
    return lines[: max(1, height)]


def queue_told(result: Queue) -> Iterator[Part]:
    """How long it took and what one device would have taken, the devices, each command, and how
    some failed.
    """
    commands, failed = result.commands, result.failed
    well = sum(one.ended_well for one in commands)
    counts = [
        (well, "succeeded"),
        (len(failed), "failed"),
        (len(commands) - well - len(failed), "not done"),
    ]
    told = ", ".join(f"{count} {how}" for count, how in counts if count)
    before = sum(one.resumed for one in commands)
    many, devices = len(commands), len(result.devices)
    took = f"{many} command{'s' * (many != 1)} on {devices} device{'s' * (devices != 1)}"
    yield (
        f"{took} in {length_text(result.makespan_s)}: "
        f"{told if well < len(commands) else 'all succeeded'}"
    )
    yield f"{before} of them before the queue was resumed" if before else ""
    shared = sum(one.ended_well > 0 for one in result.shares) > 1
    if result.speedup and result.alone_s and shared and well == len(commands):
        fastest = max(result.shares, key=lambda one: one.speed or 0.0)
        label = result.devices[fastest.device].label
        yield (
            f"{label} alone would take about {length_text(result.alone_s)}: {result.speedup:.2f} "
            "× as long"
        )
    yield BLANK
    yield device_grid(result.devices, result.shares, {"": names_of(result.devices)})
    yield _of_probes(result)
    yield BLANK
    yield _commands(result)
    for one in failed:
        last = one.tries[-1]
        where = (
            f"{one.number:03} failed on {result.devices[last.device].label} with exit code "
            f"{last.exit}"
        )
        yield BLANK
        yield (
            f"{where}; the end of what it printed{f', {one.log}' if one.log else ''}:"
            if one.tail
            else where
        )
        yield from (f"  | {line}" for line in one.tail if line)


def _of_probes(result: Queue) -> str:
    """Which devices' speeds are not of commands, as none has ended well there; empty if there is
    none.
    """
    seen = {one.tries[-1].device for one in result.commands if one.ended_well and one.tries}
    guessed = [
        one.device for one in result.shares if one.speed is not None and one.device not in seen
    ]
    labels = ", ".join(result.devices[device].label for device in guessed)
    return (
        f"the speed of {labels} is by a probe: no command has succeeded there yet"
        if guessed
        else ""
    )


def _commands(result: Queue) -> TextTable:
    """A row for each command, in a width of a terminal."""
    rows = [["", "device", "duration", "exit", ""]]
    for one in result.commands:
        told = ["", "", ""]
        for last in one.tries[-1:]:
            told = [result.devices[last.device].label, length_text(last.duration_s), str(last.exit)]
        rows.append([f"{one.number:03}", *told, clean(one.command, _LONGEST)])
    room = WIDTH - sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1])
    return TextTable([[*row, shorten(text, room)] for *row, text in rows], left=(0, 1, 4))
