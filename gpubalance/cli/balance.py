"""`gpubalance balance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from gpubalance.cli.options import Devices, Epoch, Reporting, RunControl, Scripting
from gpubalance.cli.parameters import Without
from gpubalance.cli.selection import request_fields
from gpubalance.settings.measuring import Proof
from gpubalance.settings.planning import PlanRequest, Rounds
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings

if TYPE_CHECKING:
    from gpubalance.results.plan import Plan


def balance(
    gpus: Devices,
    settings: Settings,
    split: Annotated[PlanRequest, Without("sync_s")],
    epoch: Epoch,
    search: Rounds,
    measuring: Annotated[Proof, Without("baseline")],
    control: RunControl,
    reporting: Reporting,
    scripting: Scripting,
    *,
    watch: Any = None,
) -> Any:
    """It probes, plans, runs the plan, and corrects the plan from what was measured.

    Example: gpubalance balance --gpus 0 1 -o plan.json
    """
    # `watch` is for Python: it gets the events, and nothing is shown. Returns the plan, None after
    # a dry run.
    from gpubalance.cli.dry_run import dry_run
    from gpubalance.cli.job import job_of
    from gpubalance.cli.next_command import uses
    from gpubalance.cli.output import summed_up
    from gpubalance.cli.script import check_script, following_script, write_script
    from gpubalance.jobs.balance.balance import balance as measure
    from gpubalance.render.plan import plan_summary

    machine = gpus.machine()
    fields = request_fields(machine, gpus, settings)
    request = BalanceRequest(**fields, plan=split, measuring=measuring, **dict(search))
    if scripting.script is not None:
        check_script(scripting.script, request.settings)

    def text(plan: Plan) -> str:
        command, lines = uses(plan, gpus.simulate, reporting.output)
        script = following_script(scripting.script) or lines
        return summed_up(plan, plan_summary(plan, epoch.epoch), command, script)

    if control.dry_run:
        dry_run(machine, request, control, reporting)
        return None
    with job_of(machine, request, control, reporting, text, watch=watch) as job:
        job.result = measure(job.request, job.watch, job.journal)
    if scripting.script is not None:
        write_script(scripting.script, job.result, reporting.output, gpus.simulate)
    return job.result
