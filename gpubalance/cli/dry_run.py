"""`--dry-run`: what a command would do, and about how long that takes."""

from __future__ import annotations

from collections.abc import Callable

from gpubalance.cli.options import Reporting, RunControl
from gpubalance.cli.output import Output
from gpubalance.devices.machine import Machine
from gpubalance.devices.warnings import machine_warnings
from gpubalance.errors import UsageError
from gpubalance.jobs.estimate import estimate, estimate_of_queue
from gpubalance.numbers.units import format_duration
from gpubalance.render.table import WIDTH, prose, table
from gpubalance.results.estimate import Estimate
from gpubalance.results.records import is_estimate
from gpubalance.settings.queueing import QueueRequest
from gpubalance.settings.requests import MeasureRequest
from gpubalance.text import clean


def dry_run(
    machine: Machine,
    request: MeasureRequest,
    control: RunControl,
    reporting: Reporting,
) -> None:
    """Outputs the estimate. It replaces no result, even with --overwrite.

    Raises what the command would raise of the machine.
    """
    machine_warnings(machine, request.devices, strict=control.strict)
    _give(estimate(request), lambda result: _text(result, request), reporting)


def dry_run_of_queue(request: QueueRequest, reporting: Reporting) -> None:
    """Outputs the commands that a queue would run, and on which devices."""
    _give(estimate_of_queue(request), lambda _: _queue_text(request), reporting)


def _give(
    estimated: Estimate, text: Callable[[Estimate], str], reporting: Reporting
) -> None:
    path = reporting.output
    if path is not None and path.is_file() and not is_estimate(path):
        raise UsageError(
            f"{path} exists, and --dry-run does not overwrite a result with an "
            "estimate",
            remedy="give another -o",
        )
    place = f"; this estimate is in {path}" if path else ""
    output = Output(
        reporting, lambda result: text(result) + place, shows_progress=False
    )
    output.give(estimated)


def _queue_text(request: QueueRequest) -> str:
    """Each command on a line, below the devices."""
    labels = ", ".join(f"{device.label} {device.name}" for device in request.devices)
    width = len(str(len(request.commands)))
    lines = prose(f"{len(request.commands)} commands, one at a time on {labels}", WIDTH)
    for number, command in enumerate(request.commands, 1):
        lines.append(f"  {number:{width}}  {clean(command)}")
    lines.append("nothing was run")
    return "\n".join(lines)


def _text(estimated: Estimate, request: MeasureRequest) -> str:
    """Each phase with about how long it would take, and how long all of them."""
    settings = request.settings
    devices = [f"{device.label} {device.name}" for device in request.devices]
    lines = prose(
        f"{settings.model}, {settings.precision}; {', '.join(devices)}", WIDTH
    )
    if estimated.probed:
        plan = f"planned with the probe of {estimated.probed}; --fresh would make a new one"
        lines += prose(plan, WIDTH, "  ")
    no_head = ("", "")
    rows = [no_head]
    rows += [
        (phase.name, f"about {format_duration(phase.seconds)}")
        for phase in estimated.phases
    ]
    lines += table(rows, indent="  ")[1:]
    lines += _guessed(estimated)
    whole = format_duration(estimated.seconds or 0.0)
    lines.append(f"about {whole} in all; nothing was run")
    return "\n".join(lines)


def _guessed(estimated: Estimate) -> list[str]:
    """Says which of the times come from no measurement, so that nobody relies on them."""
    guessed = [phase.name for phase in estimated.phases if phase.guessed]
    if not guessed:
        return []
    which = "these times are guesses"
    if len(guessed) < len(estimated.phases):
        count = "a guess" if len(guessed) == 1 else "guesses"
        which = f"{', '.join(guessed)}: {count}"
    known = "Nothing like it was measured on this machine yet"
    if estimated.probed:
        known = "So far only its probe was measured on this machine"
    why = (
        f"as is usual for small models. {known}, and a large model may take many "
        "times as long"
    )
    return prose(f"{which}, {why}", WIDTH)
