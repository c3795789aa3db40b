"""`gpubalance probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpubalance.cli import options, values

if TYPE_CHECKING:
    from gpubalance.results.probe import Probe

_MEASURING = "Measuring"

MaxBatch = Annotated[
    int | None,
    typer.Option(
        "--max-batch",
        metavar="N",
        min=1,
        max=10**9,
        help="Look no further than this batch. Default: until memory ends.",
        rich_help_panel=_MEASURING,
    ),
]
BatchMultiple = Annotated[
    int,
    typer.Option(
        "--batch-multiple",
        metavar="N",
        min=1,
        max=10**6,
        help="Only multiples of this; where memory does not hold one, all below it.",
        rich_help_panel=_MEASURING,
    ),
]
Margin = Annotated[
    str,
    typer.Option(
        "--margin",
        metavar="SIZE",
        help="Memory of each device to keep free, such as 512MiB.",
        rich_help_panel=_MEASURING,
    ),
]
Duration = Annotated[
    float,
    typer.Option(
        "--duration",
        metavar="S",
        help="Seconds a batch size is measured; up to 4 times that while it is not known within ±1 %.",
        rich_help_panel=_MEASURING,
    ),
]
Parallel = Annotated[
    bool,
    typer.Option(
        "--parallel",
        help="All devices at once, for hosts where they do not disturb each other.",
        rich_help_panel=_MEASURING,
    ),
]
Ahead = Annotated[
    bool,
    typer.Option(
        "--ahead/--no-ahead",
        help="Start the next child, which loads TensorFlow for seconds, before it is needed.",
        rich_help_panel=_MEASURING,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be run and how long it would take, and do nothing.")
]


def probe(
    gpus: options.Gpus = None,
    simulate: options.Simulate = None,
    model: options.Model = None,
    precision: options.Precision = "float32",
    xla: options.Xla = False,
    input_: options.Input = "device",
    max_batch: MaxBatch = None,
    batch_multiple: BatchMultiple = 8,
    margin: Margin = "0",
    duration: Duration = 3.0,
    time_limit: options.TimeLimit = None,
    deadline: options.Deadline = None,
    parallel: Parallel = False,
    ahead: Ahead = True,
    resume: options.Resume = False,
    strict: options.Strict = False,
    seed: options.Seed = 0,
    dry_run: DryRun = False,
    json: options.Json = False,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = None,
    trace: options.Trace = None,
    redact: options.Redact = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure what each device can do alone: throughput over batch sizes, batch limit, step-time model.

    Example: gpubalance probe --gpus 0 1
    """
    del verbose  # main() reads it, where errors are shown
    from gpubalance.cli.board import board_in
    from gpubalance.cli.lists import words
    from gpubalance.cli.output import check_output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.cli.tracing import name_now, tracing_to
    from gpubalance.devices.machine import find_machine, held
    from gpubalance.jobs.keep.journals import probe_journal
    from gpubalance.jobs.probe.estimate import estimate
    from gpubalance.jobs.probe.probe import probe as probe_stage
    from gpubalance.render.probe import estimate_text, probe_text
    from gpubalance.settings.requests import ProbeRequest

    own = "probe" if resume else None
    out = check_output(output, overwrite=overwrite, json=json, quiet=quiet, redact=redact, resumed=own)
    machine = find_machine(simulate)
    devices = machine.select(words(gpus))
    request = ProbeRequest(
        devices=devices,
        settings=values.settings(devices, model, precision, xla=xla, input_=input_),
        max_batch=max_batch,
        batch_multiple=batch_multiple,
        margin_bytes=values.size("--margin", margin),
        duration_s=values.seconds("--duration", duration, 3600),
        time_limit_s=values.seconds_or_none("--time-limit", time_limit, 10**7),
        deadline_s=values.seconds_or_none("--deadline", deadline, 86_400),
        parallel=parallel,
        ahead=ahead,
        seed=seed,
    )
    noted = machine.warnings(devices, strict=strict)
    if dry_run:
        expected = estimate(request)
        out.give(expected, estimate_text)
        return

    def text(result: Probe) -> str:
        found = values.command("balance", result.devices, result.settings, simulate) if result.complete else ""
        return probe_text(result, found, width())

    name = name_now("probe", tensorboard, trace)
    request = request.model_copy(update={"tracing": tracing_to(trace, name)})
    progress = Progress(quiet=quiet)
    with (
        held(devices),
        board_in(tensorboard, name, devices, request.settings, quiet=quiet) as beside,
        probe_journal(request, machine.driver, resume=resume) as journal,
    ):
        out.give_measured(
            lambda: progress.during(lambda watch: probe_stage(request, machine.driver, beside(watch), journal)),
            text,
            noted,
            journal,
        )
