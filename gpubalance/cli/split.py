"""The split that `run` measures, by hand or from a plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gpubalance.cli.options import Devices, asked_of, split_option
from gpubalance.errors import BadInput, PlanMismatch, UsageError
from gpubalance.settings.choices import DEFAULT_BATCH, names_file_or_code
from gpubalance.settings.record import Record
from gpubalance.settings.requests import Measuring, RunRequest, Settings
from gpubalance.settings.shares import Shares

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.results.common import Warning_
    from gpubalance.results.plan import Plan
    from gpubalance.settings.device import Device

Batch = Annotated[int, Field(ge=0, le=10**9)]


class GivenSplit(Record):
    """The split that `run` measures."""

    batches: tuple[Batch, ...] | None = split_option(
        "--batches N…",
        "Samples of each device in one step, in the order of --gpus: --batches 820 568. 0 leaves one out. "
        f"Default: {DEFAULT_BATCH} each.",
    )
    micro_batches: tuple[Batch, ...] | None = split_option(
        "--micro-batches N…",
        "Samples that each device takes at a time if its memory does not hold its whole batch; their gradients are "
        "summed: --batches 1640 568 --micro-batches 820 568. Default: the whole batch.",
    )
    plan: Path | None = split_option(
        "--plan PLAN.json", "Run what plan or balance wrote: its devices, batches and settings."
    )
    force: bool = split_option(
        "--force", "With --plan: run it even if its devices or its model have changed.", default=False
    )

    def read_plan(self, gpus: Devices, settings: Settings) -> Plan | None:
        """The plan, or None. Raises UsageError for --force without --plan, and for options that the plan replaces."""
        from gpubalance.results.plan import Plan
        from gpubalance.results.records import read_record

        if self.plan is None and self.force:
            raise UsageError("--force is for --plan", remedy="leave it out")
        if self.plan is None:
            return None
        self._refuse_beside_a_plan(gpus, settings)
        plan = read_record(self.plan, Plan)
        if not self.force:
            _check_simulated(plan, self.plan, gpus.simulate)
        return plan

    def by_hand(self, machine: Machine, gpus: Devices, settings: Settings, measuring: Measuring) -> RunRequest:
        """The run that the options ask for. Raises UsageError if they contradict each other."""
        asked = asked_of(machine, gpus, settings, joint=True)
        if self.batches is None and self.micro_batches is not None:
            raise UsageError("--micro-batches needs --batches", remedy="give both, in the order of --gpus")
        if self.batches is not None:
            check_batches(self.batches, asked["devices"], named=gpus.gpus is not None)
        try:
            split = Shares(self.batches or (DEFAULT_BATCH,) * len(asked["devices"]), self.micro_batches or ())
        except ValueError as error:
            option = "--micro-batches" if self.micro_batches else "--batches"
            remedy = "each device has one, in the order of --gpus. A batch of 0 leaves a device out"
            raise UsageError(f"{option}: {error}", remedy=remedy) from None
        return RunRequest(**asked, split=split, measuring=measuring)

    def by_plan(
        self, plan: Plan, machine: Machine, settings: Settings, measuring: Measuring, simulate: str | None
    ) -> RunRequest:
        """The run of a plan on the devices here. Raises PlanMismatch if they have changed, unless forced.

        Raises BadInput if its model or its samples must be named.
        """
        from gpubalance.devices.planned import MAKE_ONE, nearest_devices, planned_devices

        own = _planned_settings(plan, str(self.plan), settings.model or None, settings.data, simulate)
        if self.force:
            devices = nearest_devices(plan, machine.devices)
        else:
            remedy = f"{MAKE_ONE}; --force runs this one all the same"
            devices = planned_devices(plan.devices, plan.split.used, machine.devices, remedy=remedy)
        return RunRequest(
            settings=own,
            devices=devices,
            split=plan.split,
            joint=machine.joint,
            measuring=measuring,
        )

    def _refuse_beside_a_plan(self, gpus: Devices, settings: Settings) -> None:
        given = [("--gpus", gpus.gpus), ("--batches", self.batches), ("--micro-batches", self.micro_batches)]
        others = settings != Settings(model=settings.model, data=settings.data)
        name = next((name for name, value in given if value), "the model's settings" if others else None)
        if name is not None:
            raise UsageError(
                f"{name} and --plan: the plan has its own", remedy="leave one out. gpubalance plan makes another plan"
            )


def check_batches(batches: Sequence[int], devices: Sequence[Device], *, named: bool, least: int = 1) -> None:
    """Raises UsageError unless there is one batch for each device, 0 to leave it out.

    `named` is whether --gpus chose the devices, `least` the fewest that can train.
    """
    number = len(batches)
    if number == len(devices):
        return
    fewer = ""
    if least <= number < len(devices) and not named:
        fewer = f", or name the devices that train: --gpus {' '.join(device.called for device in devices[:number])}"
    raise UsageError(
        f"{number} batch{'es' if number > 1 else ''} for {len(devices)} device{'s' if len(devices) > 1 else ''}",
        remedy=f"give each device a batch, in the order of --gpus{fewer}",
    )


def _check_simulated(plan: Plan, path: Path, simulate: str | None) -> None:
    """Raises UsageError for a plan for simulated devices if --simulate is missing."""
    if simulate is not None or not plan.devices[0].simulated:
        return
    names = ", ".join(f"{device.label} {device.name}" for device in plan.devices)
    paced = any(device.profile for device in plan.devices)
    source = "PROFILE.toml" if paced else str(1 + max(device.index for device in plan.devices))
    raise UsageError(
        f"{path} is a plan for simulated devices ({names})",
        remedy=f"simulate them as it was made: gpubalance run --simulate {source} --plan {shlex.quote(str(path))}\n"
        "--force runs it on the GPUs that are here",
    )


def _planned_settings(plan: Plan, path: str, model: str | None, data: str | None, simulate: str | None) -> Settings:
    """The settings to train a plan with. Only a built-in model is taken from the plan, as a file must not start code.

    Raises UsageError for a model other than the plan's, BadInput if its model or its samples must be named.
    """
    from gpubalance.cli.next_command import command

    known = plan.settings
    own = names_file_or_code(known.model)
    if model is not None and not own and model != known.model:
        other = command("balance", plan.devices, known.model_copy(update={"model": model}), simulate)
        raise UsageError(
            f"the plan's batches are for {known.model}, and suit no other model: --model {model}",
            remedy=f"leave --model out, or make a plan for it:\n{other} -o other.json",
        )
    its = {"--model": known.model if own else None, "--data": known.data}
    given = {"--model": model, "--data": data}
    if any(name and given[option] is None for option, name in its.items()):
        words = [word for option, name in its.items() if name for word in (option, given[option] or name)]
        named = " and ".join(filter(None, its.values()))
        raise BadInput(
            f"the plan is for {named}, and a plan runs no code and opens no file by itself",
            remedy=f"name what it is for: gpubalance run --plan {shlex.join([path, *words])}",
        )
    return known.model_copy(update={"model": model or known.model, "data": data})


def unlike_samples(plan: Plan, settings: Settings, balance: str, *, force: bool) -> Iterator[Warning_]:
    """A warning if the samples are not those the plan was made with; `balance` is the command that measures these.

    Raises PlanMismatch for samples from another function, unless forced.
    """
    from gpubalance.results.common import Warning_
    from gpubalance.workers.code import code_key

    known = plan.settings
    if known.data is None or plan.code in ("", code_key(settings.model, settings.data)):
        return
    if settings.data != known.data and not force:
        raise PlanMismatch(
            f"the plan is for the samples of {known.data}, and {settings.data} gives others",
            remedy=f"make a plan for these: {balance}\n--force runs this one all the same",
        )
    yield Warning_(
        code="data-changed",
        message=f"the file of {settings.data} has changed since the plan was made"
        if settings.data == known.data
        else f"the plan is for the samples of {known.data}",
        next=f"if its samples have another size now, other batches suit them: {balance}",
    )
