"""`gpubalance run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpubalance.cli import options, values
from gpubalance.errors import BadInput, UsageError
from gpubalance.settings import choices
from gpubalance.settings.choices import names_file_or_code

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Measuring, RunRequest, Settings

_MEASURING = "Measuring"

Batches = Annotated[
    list[str] | None,
    typer.Option(
        "--batches",
        metavar="N…",
        help="Samples of each device in one step, in the order of --gpus: --batches 820 568. "
        f"Default: {choices.DEFAULT_BATCH} each.",
    ),
]
MicroBatches = Annotated[
    list[str] | None,
    typer.Option(
        "--micro-batches",
        metavar="N…",
        help="How many samples of its batch each device takes at a time, their gradients summed, where memory does "
        "not hold more: --batches 1640 568 --micro-batches 820 568. Default: the whole batch.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="PLAN.json", help="Run what `plan` or `balance` wrote: its devices, batches and settings."
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="With --plan: run it though its devices, or the model of that name, are others now."),
]
Baseline = Annotated[
    choices.Baseline,
    typer.Option(
        "--baseline",
        metavar="even|none",
        help="Measure the even split in turns with it, or not.",
        rich_help_panel=_MEASURING,
    ),
]


def run(
    gpus: options.Gpus = None,
    batches: Batches = None,
    micro_batches: MicroBatches = None,
    plan: PlanFile = None,
    force: Force = False,
    simulate: options.Simulate = None,
    model: options.Model = None,
    precision: options.Precision = "float32",
    xla: options.Xla = False,
    input_: options.Input = "device",
    all_reduce: options.AllReduce = "auto",
    windows: options.Windows = 3,
    duration: options.Duration = 10.0,
    baseline: Baseline = "even",
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
    """Train with a split for real, and see what each device gives and where its time goes.

    Example: gpubalance run --gpus 0 1 --batches 820 568
    """
    del verbose  # main() reads it, where errors are shown
    from gpubalance.cli.board import board_in
    from gpubalance.cli.lists import whole_numbers, words
    from gpubalance.cli.output import check_output, width
    from gpubalance.cli.progress import Progress
    from gpubalance.cli.tracing import name_now, tracing_to
    from gpubalance.devices.machine import find_machine, held
    from gpubalance.devices.planned import forced
    from gpubalance.jobs.keep.journals import run_journal
    from gpubalance.jobs.keep.saved_probes import solo_bests
    from gpubalance.jobs.run import run as run_stage
    from gpubalance.render.run import run_text
    from gpubalance.results.plan import Plan
    from gpubalance.results.records import read_record
    from gpubalance.settings.requests import Measuring, Settings

    own = "run" if resume else None
    out = check_output(output, overwrite=overwrite, json=json, quiet=quiet, redact=redact, resumed=own)
    measuring = Measuring(
        windows=windows,
        duration_s=values.seconds("--duration", duration, 86_400),
        baseline=baseline,
        seed=seed,
        deadline_s=values.seconds_or_none("--deadline", deadline, 86_400),
        time_limit_s=values.seconds_or_none("--time-limit", time_limit, 10**7),
    )
    machine = find_machine(simulate)
    given = Settings(model=model or "", precision=precision, xla=xla, input=input_, all_reduce=all_reduce)
    planned = None
    if plan is not None:
        refuse_beside_a_plan(gpus, batches, micro_batches, given)
        planned = read_record(plan, Plan)
        request = planned_request(planned, machine, measuring, planned_model(planned, model), force=force)
    else:
        if force:
            raise UsageError("--force is for --plan", remedy="leave it out")
        sizes = Sizes(whole_numbers("--batches", batches), whole_numbers("--micro-batches", micro_batches))
        request = given_request(machine, words(gpus), sizes, given, measuring)
    name = name_now("run", tensorboard, trace)
    request = request.model_copy(update={"tracing": tracing_to(trace, name)})
    progress = Progress(quiet=quiet)
    solo, model_planned = solo_bests(request), planned.model if planned and not force else None
    used = request.of_used.devices
    noted = (*machine.warnings(used, strict=strict), *(forced(planned, request.devices) if planned and force else ()))
    next_command = values.command("balance", request.devices, request.settings, simulate) if planned is None else ""
    with (
        held(used),
        board_in(tensorboard, name, request.devices, request.settings, quiet=quiet) as beside,
        run_journal(request, machine.driver, resume=resume) as journal,
    ):
        out.give_measured(
            lambda: progress.during(
                lambda watch: run_stage(request, machine.driver, beside(watch), solo, model_planned, journal)
            ),
            lambda result: run_text(result, next_command if len(result.replicas) > 1 else "", width()),
            noted,
            journal,
        )


class Sizes(NamedTuple):
    """What --batches and --micro-batches say; None where they were not given."""

    batches: list[int] | None
    micro_batches: list[int] | None


def given_request(
    machine: Machine, gpus: list[str] | None, sizes: Sizes, given: Settings, measuring: Measuring
) -> RunRequest:
    """The run that the options ask for. Raises UsageError where they contradict each other."""
    from gpubalance.settings.requests import RunRequest
    from gpubalance.settings.shares import Shares

    devices = match(machine.select(gpus), sizes.batches, named=gpus is not None)
    refuse_what_does_not_divide(devices, sizes.batches, sizes.micro_batches)
    refuse_what_devices_cannot(devices, given.all_reduce)
    return RunRequest(
        devices=devices,
        split=Shares(tuple(sizes.batches or [choices.DEFAULT_BATCH] * len(devices)), tuple(sizes.micro_batches or ())),
        settings=given.model_copy(update={"model": given.model or values.default_model(devices)}),
        joint=machine.joint,
        measuring=measuring,
    )


def planned_model(plan: Plan, model: str | None) -> str:
    """What is trained with a plan. Its own name is taken for a built-in model only, as a file must not start code.

    Raises BadInput where the plan is for a user's own model and --model does not name it, UsageError where --model is
    given beside a plan for a built-in one.
    """
    built_in = not names_file_or_code(plan.settings.model)
    if model is not None and built_in:
        raise UsageError("--plan says --model itself", remedy="leave it out; gpubalance plan makes another plan")
    if model is None and not built_in:
        raise BadInput(
            f"the plan is for a model of your own, {plan.settings.model}, and a plan starts no code and opens no file",
            remedy=f"name it: --model {shlex.quote(plan.settings.model)}",
        )
    return model or plan.settings.model


def planned_request(
    plan: Plan, machine: Machine, measuring: Measuring, model: str, *, force: bool = False
) -> RunRequest:
    """The run of a plan on the devices that are here. Raises PlanMismatch where they are others, unless forced."""
    from gpubalance.devices.planned import planned_devices
    from gpubalance.settings.requests import RunRequest
    from gpubalance.settings.shares import Shares

    return RunRequest(
        devices=planned_devices(plan, machine.devices, force=force),
        split=Shares(plan.batches, plan.micro_batches),
        settings=plan.settings.model_copy(update={"model": model}),
        joint=machine.joint,
        measuring=measuring,
    )


def refuse_beside_a_plan(
    gpus: list[str] | None, batches: list[str] | None, micro_batches: list[str] | None, given: Settings
) -> None:
    """Raises UsageError for what the plan says itself."""
    from gpubalance.settings.requests import Settings

    said = [("--gpus", gpus), ("--batches", batches), ("--micro-batches", micro_batches)]
    others = given.model_copy(update={"model": ""}) != Settings(model="")
    name = next((name for name, value in said if value), "the model's settings" if others else None)
    if name is not None:
        raise UsageError(f"--plan says {name} itself", remedy="leave it out; gpubalance plan makes another plan")


def match(devices: Sequence[Device], sizes: Sequence[int] | None, *, named: bool) -> tuple[Device, ...]:
    """The devices that the batches are for: those named, or, with --batches alone, the first ones.

    Raises UsageError where the numbers of both differ, or a batch is 0.
    """
    if sizes is None:
        return tuple(devices)
    if not all(sizes):
        raise UsageError(
            "--batches: each batch must be above 0", remedy="leave a device out with --gpus: --gpus 0 --batches 820"
        )
    if len(sizes) > len(devices) or (named and len(sizes) != len(devices)):
        raise UsageError(
            f"{_count(len(sizes), 'batch')} for {_count(len(devices), 'device')}",
            remedy="give one batch a device, in the order of --gpus",
        )
    return tuple(devices[: len(sizes)])


def refuse_what_does_not_divide(
    devices: Sequence[Device], sizes: Sequence[int] | None, micro_sizes: Sequence[int] | None
) -> None:
    """Raises UsageError for micro-batches that are not one a batch, each a divisor of it."""
    if micro_sizes is None:
        return
    if sizes is None:
        raise UsageError("--micro-batches needs --batches", remedy="give both, in the order of --gpus")
    if len(micro_sizes) != len(sizes):
        raise UsageError(
            f"{_count(len(micro_sizes), 'micro-batch')} for {_count(len(sizes), 'batch')}",
            remedy="give one micro-batch a device, in the order of --gpus; the batch itself where it is taken whole",
        )
    for device, batch, micro in zip(devices, sizes, micro_sizes, strict=True):
        if not micro:
            raise UsageError(
                f"--micro-batches: {device.label}'s must be above 0",
                remedy=f"give {device.label}'s batch itself, {batch}, where it is taken whole",
            )
        if micro > batch:
            raise UsageError(
                f"--micro-batches: {device.label}'s {micro} is above its batch, {batch}",
                remedy=f"give {batch}, to take it whole, or a number that divides it",
            )
        if batch % micro:
            nearest = next(size for size in range(micro, 0, -1) if batch % size == 0)
            raise UsageError(
                f"--micro-batches: {device.label}'s {micro} does not divide its batch, {batch}",
                remedy=f"take micro-batches of {nearest}, or a batch of {batch - batch % micro}",
            )


def refuse_what_devices_cannot(devices: Sequence[Device], all_reduce: str) -> None:
    """Raises UsageError for a joint run of MIG slices, and for NCCL without GPUs."""
    if len(devices) > 1 and any(device.uuid.startswith("MIG-") for device in devices):
        raise UsageError("CUDA shows a process one MIG slice only: there is no joint run", remedy="name one slice")
    if devices[0].simulated and all_reduce == "nccl":
        raise UsageError("--all-reduce nccl needs GPUs", remedy="use auto, hierarchical or one-device")


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("ch") else "s"
    return f"{number} {word}{'' if number == 1 else plural}"
