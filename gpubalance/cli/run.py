"""`gpubalance run`: the split that it measures is given by hand or by a plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gpubalance.cli.options import Devices, Epoch, Reporting, RunControl, asked_of
from gpubalance.cli.parameters import Without
from gpubalance.errors import BadInput, PlanMismatch, UsageError
from gpubalance.settings.choices import DEFAULT_BATCH, names_file_or_code
from gpubalance.settings.measuring import Measuring
from gpubalance.settings.options import split_option
from gpubalance.settings.record import Record
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.common import Warning_
    from gpubalance.results.plan import Plan

Batch = Annotated[int, Field(ge=0, le=10**9)]


class GivenSplit(Record):
    """The split that `run` measures."""

    batches: tuple[Batch, ...] | None = split_option(
        "--batches N…",
        "Samples of each device in one step, in the order of --gpus: --batches 820 568. 0 "
        "leaves one out. "
        f"Default: {DEFAULT_BATCH} each.",
    )
    micro_batches: tuple[Batch, ...] | None = split_option(
        "--micro-batches N…",
        "Samples that each device takes at a time if its memory does not hold its whole "
        "batch; their gradients are "
        "summed: --batches 1640 568 --micro-batches 820 568. Default: the whole batch.",
    )
    plan: Path | None = split_option(
        "--plan PLAN.json", "Run what plan or balance wrote: its devices, batches and settings."
    )
    force: bool = split_option(
        "--force",
        "With --plan: run it even if its devices or its model have changed.",
        default=False,
    )

    def by_hand(
        self, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring
    ) -> RunRequest:
        """The run that the options ask for. Raises UsageError for what is no split of
        the devices.
        """
        from gpubalance.training.sizes import shares_of

        asked = asked_of(machine, gpus, settings)
        number = len(asked["devices"])
        split = shares_of(
            self.batches or (DEFAULT_BATCH,) * number,
            self.micro_batches or (),
            number,
            order="--gpus",
        )
        return RunRequest(**asked, split=split, measuring=measuring)

    def by_plan(
        self, plan: Plan, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring
    ) -> RunRequest:
        """The run of a plan on the devices here. Raises UsageError for options that the plan
        replaces.

        Raises PlanMismatch if the devices have changed, unless forced, and BadInput if its model or
        its samples must be named: only a built-in model is taken from the plan, as a file must not
        start code.
        """
        from gpubalance.devices.planned import MAKE_ONE, nearest_devices, planned_devices

        known, own = plan.settings, Settings(model=settings.model, data=settings.data)
        if gpus.gpus or self.batches or self.micro_batches or settings != own:
            raise UsageError(
                "--plan has its own devices, batches and settings",
                remedy="leave it out, or the others",
            )
        code = known.model if names_file_or_code(known.model) else None
        needed = (("--model", code, settings.model), ("--data", known.data, settings.data))
        unnamed = [f"{option} {its}" for option, its, given in needed if its and not given]
        if unnamed:
            why = (
                f"{self.plan} is for code of yours, and a plan runs no code and opens no file by "
                "itself"
            )
            raise BadInput(why, remedy=f"name what it is for: {' '.join(unnamed)}")
        if self.force:
            devices = nearest_devices(plan, machine.devices)
        else:
            remedy = f"{MAKE_ONE}; --force runs this one all the same"
            devices = planned_devices(plan, plan.split.used, machine.devices, remedy)
        return RunRequest(
            settings=known.model_copy(
                update={"model": settings.model or known.model, "data": settings.data}
            ),
            devices=devices,
            driver=machine.driver,
            split=plan.split,
            joint=machine.joint,
            measuring=measuring,
        )


def unlike_samples(
    plan: Plan, settings: Settings, balance: str, *, force: bool
) -> Iterator[Warning_]:
    """A warning if the samples are not those the plan was made with; `balance` is the command that
    measures these.

    Raises PlanMismatch for samples from another function, unless forced.
    """
    from gpubalance.results.common import Warning_
    from gpubalance.workers.code import code_key

    known = plan.settings
    if known.data is None or plan.code in ("", code_key(settings.model, settings.data)):
        return
    why = (
        f"the plan is for the samples of {known.data} as it was then, not for those of "
        f"{settings.data} now"
    )
    if settings.data != known.data and not force:
        raise PlanMismatch(
            why, remedy=f"make a plan for these: {balance}\n--force runs this one all the same"
        )
    then = f"if its samples have another size now, other batches suit them: {balance}"
    yield Warning_(code="data-changed", message=why, next=then)


def run(
    split: GivenSplit,
    gpus: Devices,
    settings: Settings,
    measuring: Measuring,
    care: Annotated[RunControl, Without("dry_run")],
    reporting: Reporting,
    epoch: Epoch,
) -> None:
    """Example: gpubalance run --gpus 0 1 --batches 820 568"""
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import command
    from gpubalance.devices.planned import forced
    from gpubalance.jobs.keep.saved import refuse_what_failed, solo_bests
    from gpubalance.jobs.run import run as run_job
    from gpubalance.render.run import run_told
    from gpubalance.results.plan import Plan
    from gpubalance.results.records import read_record

    plan = read_record(split.plan, Plan) if split.plan else None
    if split.force and plan is None:
        raise UsageError("--force is for --plan", remedy="leave it out")
    if plan is not None and plan.devices[0].simulated and gpus.simulate is None and not split.force:
        remedy = (
            "simulate them as it was made: gpubalance run --simulate PROFILE.toml --plan "
            f"{split.plan}\n"
        )
        remedy += "--force runs it on the GPUs that are here"
        raise UsageError(f"{split.plan} is a plan for simulated devices", remedy=remedy)
    machine = gpus.machine()
    noted: list[Warning_] = []
    if plan is None:
        request = split.by_hand(machine, gpus, settings, measuring)
        again = command("probe", request.devices, request.settings, gpus.simulate)
        refuse_what_failed(request.devices, request.split, request.settings, again)
    else:
        request = split.by_plan(plan, machine, gpus, settings, measuring)
    balance = command("balance", request.devices, request.settings, gpus.simulate)
    if plan is not None:
        noted += forced(plan, request.devices) if split.force else ()
        noted += unlike_samples(plan, request.settings, balance, force=split.force)
    solo = solo_bests(request.devices, request.split, request.settings)
    following = balance if plan is None and len(request.split.used) > 1 else ""
    model = plan.model if plan and not split.force else None
    measured(
        machine,
        request,
        care,
        reporting,
        lambda request, watch, journal: run_job(request, watch, journal, solo, model),
        lambda run: run_told(run, epoch.epoch),
        lambda _: (following, ()),
        noted,
    )
