"""`gpubalance plan`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli import options, values
from gpubalance.errors import BadInput
from gpubalance.settings.choices import names_file_or_code
from gpubalance.text import clean_lines

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan
    from gpubalance.results.probe import Probe
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Settings

ProbeFile = Annotated[
    Path | None,
    typer.Argument(metavar="[PROBE.json]", help="What `probe -o` wrote. Default: the latest of these devices."),
]
Sync = Annotated[
    float | None,
    typer.Option(
        "--sync",
        metavar="S",
        min=0,
        max=1e6,
        help="Seconds a step takes after the slowest compute, as a run has shown.",
        rich_help_panel="Split",
    ),
]


def plan(
    probe: ProbeFile = None,
    gpus: options.Gpus = None,
    simulate: options.Simulate = None,
    model: options.Model = None,
    precision: options.Precision = "float32",
    xla: options.Xla = False,
    input_: options.Input = "device",
    global_batch: options.GlobalBatch = None,
    max_global_batch: options.MaxGlobalBatch = None,
    accumulate: options.Accumulate = "auto",
    batch_multiple: options.PlannedMultiple = None,
    margin: options.JointMargin = "0",
    sync: Sync = None,
    from_batch: options.FromBatch = None,
    json: options.Json = False,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    redact: options.Redact = False,
    verbose: options.Verbose = False,
) -> None:
    """Compute the best split from a probe, and predict what it gives. No device is touched.

    Example: gpubalance plan --gpus 0 1
    """
    del verbose  # main() reads it, where errors are shown
    from gpubalance.cli.lists import words
    from gpubalance.cli.output import check_output, width
    from gpubalance.devices.machine import find_machine
    from gpubalance.devices.select import select
    from gpubalance.jobs.plan import plan as plan_stage
    from gpubalance.render.plan import plan_text
    from gpubalance.results.probe import Probe
    from gpubalance.results.records import read_record

    out = check_output(output, overwrite=overwrite, json=json, quiet=True, redact=redact)
    request = values.plan_request(
        accumulate,
        margin,
        sync,
        global_batch=global_batch,
        max_global_batch=max_global_batch,
        batch_multiple=batch_multiple,
        from_batch=from_batch,
    )
    if probe is not None:
        found = read_record(probe, Probe)
        devices = select(words(gpus), found.devices)
    else:
        devices = find_machine(simulate).select(words(gpus))
        settings = values.settings(devices, model, precision, xla=xla, input_=input_)
        found = latest_probe(devices, settings, simulate)
    result = plan_stage(found, devices, request)
    out.give(result, lambda plan: plan_text(plan, *uses(plan, simulate, output), width()))


def latest_probe(devices: Sequence[Device], settings: Settings, simulate: str | None) -> Probe:
    """Raises BadInput where these devices were not probed with these settings."""
    from gpubalance.jobs.keep.saved_probes import latest

    found = latest(devices, settings)
    if found is None:
        raise BadInput(
            f"no probe of these devices with --model {settings.model} and these settings is kept here",
            remedy=f"make one: {values.command('probe', devices, settings, simulate)}",
        )
    return found


def uses(plan: Plan, simulate: str | None, path: Path | None) -> tuple[str, tuple[str, ...]]:
    """What to do with a plan: the command that runs it, and the lines of a training script.

    Both are empty for a simulation whose profile is not known. They give the split of a plan without UUIDs, which
    can't be loaded.
    """
    from gpubalance.results.redact import is_redacted

    if any(is_redacted(device.uuid) for device in plan.devices):
        path = None
    if plan.devices[0].simulated and simulate is None:
        return "", ()
    return _run_command(plan, simulate, path), _script(plan, simulate, path)


def _script(plan: Plan, simulate: str | None, path: Path | None) -> tuple[str, ...]:
    simulated = f", simulate={simulate!r}" if simulate else ""
    used = [share for share in plan.shares if share.batch]
    if path is not None:
        split = f"load_plan({str(path)!r}{simulated})"
    else:
        gpus = [plan.devices[share.device].index for share in used]
        accumulates = any(share.micro_batch != share.batch for share in used)
        micro = f", micro_batches={[share.micro_batch for share in used]}" if accumulates else ""
        split = f"Split({gpus}, {[share.batch for share in used]}{micro}{simulated})"
    return (
        clean_lines(f"split = gpubalance.{split}"),
        "with split.scope(): model = build_model(); model.compile(…)",
        "split.fit(model, dataset, epochs=10)",
    )


def _run_command(plan: Plan, simulate: str | None, path: Path | None) -> str:
    if path is not None:
        words = ["gpubalance", "run", *(["--simulate", simulate] if simulate else []), "--plan", str(path)]
        model = plan.settings.model
        return clean_lines(shlex.join([*words, *(["--model", model] if names_file_or_code(model) else [])]))
    used = [share for share in plan.shares if share.batch]
    split = ["--batches", *(str(share.batch) for share in used)]
    if any(share.micro_batch != share.batch for share in used):
        split += ["--micro-batches", *(str(share.micro_batch) for share in used)]
    return values.command("run", [plan.devices[share.device] for share in used], plan.settings, simulate, *split)
