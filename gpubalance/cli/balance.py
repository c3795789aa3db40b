"""`gpubalance balance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from gpubalance.cli.options import Care, Devices, Epoch, Reporting, asked_of
from gpubalance.cli.parameters import Without
from gpubalance.settings.requests import BalanceRequest, PlanRequest, Proof, Rounds, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpubalance.cli.next_command import Following
    from gpubalance.render.table import Part
    from gpubalance.results.plan import Plan


def balance(
    gpus: Devices,
    settings: Settings,
    split: Annotated[PlanRequest, Without("sync_s")],
    epoch: Epoch,
    search: Rounds,
    measuring: Annotated[Proof, Without("baseline")],
    care: Care,
    reporting: Reporting,
    *,
    watch: Any = None,
) -> Any:
    """Example: gpubalance balance --gpus 0 1 -o plan.json"""
    # `watch` is a listener, as `Watch` is: nothing is shown then. The plan is returned, None after a dry run.
    from gpubalance.cli.measured import measured
    from gpubalance.cli.next_command import uses
    from gpubalance.jobs.balance.balance import balance as job
    from gpubalance.render.plan import plan_told

    machine = gpus.machine()
    asked = asked_of(machine, gpus, settings)
    request = BalanceRequest(**asked, plan=split, measuring=measuring, **dict(search))

    def told(plan: Plan) -> Iterable[Part]:
        return plan_told(plan, epoch.epoch)

    def following(plan: Plan) -> Following:
        return uses(plan, gpus.simulate, reporting.output)

    return measured(machine, request, care, reporting, job, told, following, watch=watch)
