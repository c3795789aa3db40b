"""`balance` as a whole: takes a probe, and finds and proves the best split of its devices."""

from __future__ import annotations

from gpubalance.jobs.balance.course import find_and_prove
from gpubalance.jobs.balance.result import result_so_far
from gpubalance.jobs.balance.reuse import new_probe, probe_from_before
from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.events import Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.saved import keep_balance
from gpubalance.jobs.measure.party import party_for
from gpubalance.jobs.plan.problem import check_asked
from gpubalance.results.plan import Plan
from gpubalance.results.timing import Overhead
from gpubalance.settings.requests import BalanceRequest
from gpubalance.system.deadlines import TimeLimit


def balance(request: BalanceRequest, watch: Watch, journal: Journal) -> Plan:
    """The best split of the request's devices, found and proven by running it.

    Rounds and windows go into the `journal`; those that are already in it are not measured again.
    Raises what the probe, the plan and the run do.
    """
    check_asked(request)  # before minutes are spent on a probe
    limit = TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    with party_for(request, watch, limit, journal=journal) as party:
        earlier = probe_from_before(request, watch, journal)
        probe = earlier or new_probe(request, limit, watch, journal, party)
        # A new probe has told what it found of the model.
        model_is_told = earlier is None
        together = Together(
            request,
            probe.model,
            party,
            watch,
            journal,
            model_is_told,
            probing=Overhead() if earlier else probe.overhead,
        )
        rounds = BalanceRounds(together, probe)
        with (
            attach_partial(lambda: result_so_far(rounds)),
            raising_gpu_lost(request.devices),
        ):
            plan = find_and_prove(rounds)
            keep_balance(request, plan)
            return plan
