"""`gpubalance balance`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpubalance.cli import options, values

_MEASURING = "Measuring"

Rounds = Annotated[
    int,
    typer.Option(
        "--rounds", metavar="N", min=1, max=100, help="Try no more splits than that.", rich_help_panel=_MEASURING
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Probe anew, though these devices and settings have been.", rich_help_panel=_MEASURING
    ),
]
RoundDuration = Annotated[
    float,
    typer.Option(
        "--round-duration", metavar="S", help="Seconds a split is measured in a round.", rich_help_panel=_MEASURING
    ),
]


def balance(
    gpus: options.Gpus = None,
    simulate: options.Simulate = None,
    model: options.Model = None,
    precision: options.Precision = "float32",
    xla: options.Xla = False,
    input_: options.Input = "device",
    all_reduce: options.AllReduce = "auto",
    global_batch: options.GlobalBatch = None,
    max_global_batch: options.MaxGlobalBatch = None,
    accumulate: options.Accumulate = "auto",
    batch_multiple: options.PlannedMultiple = None,
    margin: options.JointMargin = "0",
    from_batch: options.FromBatch = None,
    rounds: Rounds = 5,
    fresh: Fresh = False,
    round_duration: RoundDuration = 3.0,
    windows: options.Windows = 3,
    duration: options.Duration = 10.0,
    time_limit: options.TimeLimit = None,
    deadline: options.Deadline = None,
    resume: options.Resume = False,
    strict: options.Strict = False,
    seed: options.Seed = 0,
    json: options.Json = False,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    tensorboard: options.TensorBoard = None,
    trace: options.Trace = None,
    redact: options.Redact = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Find the best split and prove it: probe, plan, run, and correct it from what was measured.

    Example: gpubalance balance --gpus 0 1 -o plan.json
    """
    del verbose  # main() reads it, where errors are shown
    from gpubalance.cli.board import board_in
    from gpubalance.cli.lists import words
    from gpubalance.cli.output import check_output, width
    from gpubalance.cli.plan import uses
    from gpubalance.cli.progress import Progress
    from gpubalance.cli.run import refuse_what_devices_cannot
    from gpubalance.cli.tracing import name_now, tracing_to
    from gpubalance.devices.machine import find_machine, held
    from gpubalance.jobs.balance.balance import balance as balance_stage
    from gpubalance.jobs.keep.journals import balance_journal
    from gpubalance.render.plan import plan_text
    from gpubalance.settings.requests import BalanceRequest, Measuring

    own = "plan" if resume else None
    out = check_output(output, overwrite=overwrite, json=json, quiet=quiet, redact=redact, resumed=own)
    machine = find_machine(simulate)
    devices = machine.select(words(gpus))
    refuse_what_devices_cannot(devices, all_reduce)
    request = BalanceRequest(
        devices=devices,
        settings=values.settings(devices, model, precision, xla=xla, input_=input_, all_reduce=all_reduce),
        joint=machine.joint,
        plan=values.plan_request(
            accumulate,
            margin,
            global_batch=global_batch,
            max_global_batch=max_global_batch,
            batch_multiple=batch_multiple,
            from_batch=from_batch,
        ),
        measuring=Measuring(
            windows=windows,
            duration_s=values.seconds("--duration", duration, 86_400),
            baseline="even",
            seed=seed,
            deadline_s=values.seconds_or_none("--deadline", deadline, 86_400),
            time_limit_s=values.seconds_or_none("--time-limit", time_limit, 10**7),
        ),
        round_s=values.seconds("--round-duration", round_duration, 3600),
        rounds=rounds,
        fresh=fresh,
    )
    name = name_now("balance", tensorboard, trace)
    request = request.model_copy(update={"tracing": tracing_to(trace, name)})
    progress = Progress(quiet=quiet)
    noted = machine.warnings(devices, strict=strict)
    with (
        held(devices),
        board_in(tensorboard, name, devices, request.settings, quiet=quiet) as beside,
        balance_journal(request, machine.driver, resume=resume) as journal,
    ):
        out.give_measured(
            lambda: progress.during(lambda watch: balance_stage(request, machine.driver, beside(watch), journal)),
            lambda plan: plan_text(plan, *uses(plan, simulate, output), width()),
            noted,
            journal,
        )
