"""`gpubalance balance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from gpubalance.cli import values
from gpubalance.cli.measuring import MeasuringOptions, ProofOptions
from gpubalance.cli.options import DeviceOptions, JointTrainingOptions, ReportingOptions, measuring_option
from gpubalance.cli.split import EpochOption, WantedSplitOptions

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan


@dataclass(frozen=True)
class RoundOptions:
    """How to find the split, before it is proven."""

    rounds: Annotated[
        int, measuring_option("--rounds", metavar="N", min=1, max=100, help="Measure splits at most that many times.")
    ] = 10
    fresh: Annotated[
        bool,
        measuring_option("--fresh", help="Probe again, even if these devices were probed with these settings before."),
    ] = False
    round_duration: Annotated[
        float | None,
        measuring_option(
            "--round-duration",
            metavar="S",
            help="Seconds to measure each split that is tried. Default: until it is known within ± 1 %, up to 3 s.",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        measuring_option("--dry-run", help="Say what would be done and how long it would take, and do nothing."),
    ] = False


def balance(
    gpus: DeviceOptions,
    training: JointTrainingOptions,
    split: WantedSplitOptions,
    search: RoundOptions,
    windows: ProofOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
    epoch: EpochOption = None,
) -> None:
    """Example: gpubalance balance --gpus 0 1 -o plan.json"""
    balanced(gpus, training, split, search, windows, measuring, reporting, epoch)


def balanced(
    gpus: DeviceOptions,
    training: JointTrainingOptions,
    split: WantedSplitOptions,
    search: RoundOptions,
    windows: ProofOptions,
    measuring: MeasuringOptions,
    reporting: ReportingOptions,
    epoch: EpochOption = None,
    watch: Annotated[Any, "a Watch"] = None,
) -> Any:
    """Runs the command and returns its plan, None for a dry run. A `watch` gets the events, and stdout nothing."""
    from gpubalance.cli.measured import estimated, measured
    from gpubalance.jobs.balance.balance import balance as balance_job
    from gpubalance.jobs.keep.journals import balance_journal
    from gpubalance.results.plan import Plan
    from gpubalance.settings.requests import BalanceRequest

    machine = gpus.machine()
    devices = machine.select(gpus.named)
    request = BalanceRequest(
        devices=devices,
        settings=training.settings(devices),
        joint=machine.joint,
        plan=split.request(),
        measuring=windows.measuring(measuring),
        round_s=values.seconds_or_none("--round-duration", search.round_duration, 3600),
        rounds=search.rounds,
        fresh=search.fresh,
    )

    if search.dry_run:
        estimated(machine, devices, measuring, reporting, request)
        return None
    return measured(
        "balance",
        machine,
        request,
        measuring,
        reporting,
        used=devices,
        kind=Plan,
        journal=balance_journal,
        job=balance_job,
        text=lambda plan: _summary(plan, gpus, reporting, epoch) if watch is None else "",
        watch=watch,
    )


def _summary(plan: Plan, gpus: DeviceOptions, reporting: ReportingOptions, epoch: int | None) -> str:
    """The text for stdout."""
    from gpubalance.cli.next_command import uses
    from gpubalance.cli.output import width
    from gpubalance.render.plan import plan_told
    from gpubalance.render.summary import summary

    run = plan.balance.run if plan.balance else None
    warnings = (*(run.warnings if run else ()), *plan.warnings)
    return summary(plan_told(plan, epoch), warnings, *uses(plan, gpus.simulate, reporting.output), width())
