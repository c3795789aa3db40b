"""A queue of commands as text: what runs, what has ended, and the summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from rich.cells import cell_len
from rich.text import Text

from gpubalance.numbers.units import NOT_AVAILABLE
from gpubalance.render.table import (
    BLANK,
    WIDTH,
    Paragraph,
    TextTable,
    aligned,
    device_table,
    names_of,
    shorten,
)
from gpubalance.results.queue import Queue, QueuedCommand, RunningCommand
from gpubalance.settings.device import Device
from gpubalance.text import clean

_LONGEST = 200
_PRECISE_S = 99.95  # from there on 100.0 s


def length_text(seconds: float) -> str:
    """`4.0 s`, and `0:02:05` for longer ones."""
    if seconds < _PRECISE_S:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(seconds)))


def begun_text(device: Device, command: QueuedCommand) -> str:
    """`001 begins on GPU:0: python train.py`."""
    return f"{command.number:03} begins on {device.label}: {clean(command.command, _LONGEST)}"


def ended_text(device: Device, command: QueuedCommand, next_on: Device | None) -> str:
    """`001 ended on GPU:0 after 4.0 s: python train.py`; with the exit code if it failed."""
    last = command.tries[-1]
    how = "ended"
    if last.out_of_memory:
        how = "ran out of memory"
    elif last.exit != 0:
        how = "failed"
    after = f"after {length_text(last.duration_s)}"
    if last.fault:
        after += f", {last.fault}"
    elif last.exit:
        after += f", exit {last.exit}"
    if next_on:
        after += f"; trying again on {next_on.label}, which has more memory"
    line = clean(command.command, _LONGEST)
    return f"{command.number:03} {how} on {device.label} {after}: {line}"


def running_lines(
    devices: Sequence[Device],
    running: Sequence[RunningCommand],
    width: int,
    height: int,
) -> list[Text]:
    """What each device runs, since when, and the last line that this printed, if there is room."""
    now_s = time.monotonic()
    by_device = {run.device: run for run in running}
    label_width = max(cell_len(device.label) for device in devices)
    lines = []
    for number, device in enumerate(devices):
        label = aligned(device.label, label_width)
        run = by_device.get(number)
        if run is None:
            lines.append(Text(f"{label}  idle", "dim"))
            continue
        since = f"{timedelta(seconds=int(now_s - run.began_s))!s:>8}"
        command = clean(run.command.command, _LONGEST)
        lines.append(Text(f"{label}  {run.command.number:03}  {since}  {command}"))
        if run.last and height >= 2 * len(devices):
            lines.append(Text(" " * (label_width + 2) + run.last, "dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")  # by the columns that it takes
    return lines[: max(1, height)]


def queue_summary(result: Queue) -> Iterator[Paragraph]:
    """How long it took, also on one device, the devices, each command, and how some failed."""
    commands = result.commands
    well = sum(command.ended_well for command in commands)
    yield _answer(result, well)
    resumed = sum(command.resumed for command in commands)
    if resumed:
        yield f"{resumed} of them before the queue was resumed"
    are_shared = sum(share.ended_well > 0 for share in result.shares) > 1
    if result.speedup and result.alone_s and are_shared and well == len(commands):
        fastest = max(result.shares, key=lambda share: share.speed or 0.0)
        alone = f"{result.label(fastest.device)} alone would take about"
        times = f"{result.speedup:.2f} × as long"
        yield f"{alone} {length_text(result.alone_s)}: {times}"
    yield BLANK
    yield device_table(result.devices, result.shares, {"": names_of(result.devices)})
    yield _guessed_speeds(result)
    yield BLANK
    yield _commands(result)
    for command in result.failed:
        yield BLANK
        yield from _failure(result, command)


def _answer(result: Queue, well: int) -> str:
    commands = len(result.commands)
    devices = len(result.devices)
    failed = len(result.failed)
    counts = {"succeeded": well, "failed": failed, "not done": commands - well - failed}
    how = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    if well == commands:
        how = "all succeeded"
    took = f"{_counted(commands, 'command')} on {_counted(devices, 'device')}"
    return f"{took} in {length_text(result.makespan_s)}: {how}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _failure(result: Queue, command: QueuedCommand) -> Iterator[str]:
    last = command.tries[-1]
    text = f"{command.number:03} failed on {result.label(last.device)}"
    if last.fault:
        text += f": {last.fault}"
    else:
        text += f" with exit code {last.exit}"
    if command.tail:
        log = f", {command.log}" if command.log else ""
        text += f"; the end of its output{log}:"
    yield text
    for line in command.tail:
        if line:
            yield f"  | {line}"


def _guessed_speeds(result: Queue) -> str:
    """Which devices' speeds are by a probe, as no command has ended well there; empty if none."""
    measured = set()
    for command in result.commands:
        if command.ended_well and command.tries:
            measured.add(command.tries[-1].device)
    labels = []
    for share in result.shares:
        if share.speed is not None and share.device not in measured:
            labels.append(result.label(share.device))
    if not labels:
        return ""
    which = f"the speed of {labels[0]} is"
    if len(labels) > 1:
        which = f"the speeds of {', '.join(labels)} are"
    return f"{which} from a probe: no command has succeeded there yet"


def _commands(result: Queue) -> TextTable:
    """A row for each command, in a width of a terminal."""
    rows = [["", "device", "duration", "exit", ""]]
    for command in result.commands:
        cells = ["", "", ""]
        if command.tries:
            last = command.tries[-1]
            cells = [
                result.label(last.device),
                length_text(last.duration_s),
                NOT_AVAILABLE if last.exit is None else str(last.exit),
            ]
        rows.append([f"{command.number:03}", *cells, clean(command.command, _LONGEST)])
    *columns, _ = zip(*rows, strict=True)
    room = WIDTH - sum(max(map(cell_len, column)) + 2 for column in columns)
    for row in rows:
        row[-1] = shorten(row[-1], room)
    return TextTable(rows, left=(0, 1, 4))
