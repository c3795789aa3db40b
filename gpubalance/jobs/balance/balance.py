"""`balance`: probe, plan, run, correct the split from what was measured, until another round would gain nothing."""

from __future__ import annotations

from collections.abc import Callable

from gpubalance.errors import (
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    PartialResult,
    UsageError,
)
from gpubalance.jobs.balance.knowledge import WORTH_A_ROUND, Knowledge, Tried
from gpubalance.jobs.balance.probing import PlannedWith, probe_for
from gpubalance.jobs.balance.rounds import Rounds, TriedSplit
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Doing, PhaseBegun, RoundDone, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.keep.saved import keep_balance
from gpubalance.jobs.keep.saved_probes import solo_bests_of
from gpubalance.jobs.measure.joint import party_for
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.measure.pipeline import ceiling
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.warnings import batches_joined, resumed, speed_changed, unsteady_machine
from gpubalance.jobs.partial import giving
from gpubalance.jobs.plan.beside import best_at
from gpubalance.jobs.plan.problem import best_split, find_probes
from gpubalance.jobs.plan.record import plan_of
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Pipeline, Run, alone_in_use
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def balance(request: BalanceRequest, driver: str | None, watch: Watch, journal: Journal | None = None) -> Plan:
    """The best split of the request's devices, found and proven by running it; `driver` is recorded.

    Rounds and windows go into the `journal`; those that are already in it are not measured again. Raises what the
    probe, the plan and the run do.
    """
    limit, once = TimeLimit(request.measuring.time_limit_s), Once(journal, watch)
    with party_for(request, watch, limit) as party:
        probe = probe_for(request, driver, limit, watch, journal, once, party)
        balancing = Balancing(request, probe, driver, party, watch, once)
        with giving(balancing.so_far), lost_gpus_told(request.devices):
            plan = balancing.run()
            keep_balance(request, plan)
            return plan


class Balancing:
    """The rounds and proofs of a balance, with what has been found so far."""

    def __init__(
        self,
        request: BalanceRequest,
        probe: Probe,
        driver: str | None,
        party: Party,
        watch: Watch,
        once: Once,
    ) -> None:
        """`party` is regrouped for each split; its owner ends it."""
        self.request = request
        self._probe = probe
        self._driver = driver
        self._watch = watch
        self._once = once
        self._known = Knowledge(probe, find_probes(probe, request.devices), request.plan)
        self._rounds = Rounds(request.rounds, len(request.devices))
        self._together = Together(request, probe.model, party, watch)
        self._proofs = 0
        self._stepped_back = False
        self._failed: set[Shares] = set()
        self._trace_warnings: list[Warning_] = []
        self._unsteady: Warning_ | None = None
        self._pipeline: Pipeline | None = None

    def run(self) -> Plan:
        """Tries splits until none promises more than was measured, and proves the best until the best is proven."""
        while True:
            best = self._known.best()
            planned = None if self._rounds.are_over else self._worth_a_round(best)
            often = planned and self._known.too_often(planned.split)
            if often:
                self._not_steady(often)
            elif planned is not None:
                self._try(planned)
            elif best is None:
                raise PartialResult(
                    f"every split that was tried ran out of memory, {len(self._rounds)} of them",
                    remedy="--margin keeps more memory free, --rounds tries more",
                )
            elif best.run is None:
                self._prove(best.planned)
            else:
                self._pipeline = self._ceiling(best.planned.split, best.run)
                self._trace(best.planned.split)
                return self._result(best)

    def _worth_a_round(self, best: Tried | None) -> Allocation | None:
        """The next split to measure: one that promises more, else one whose place among the best is in doubt, or None.

        The best itself is measured once more while it may give what another promises.
        """
        promised = self._promising(best)
        if promised is not None:
            return best.planned if best and best.may_give(self._known.problem.value(promised)) else promised
        doubtful = self._known.in_doubt()
        return None if doubtful is None else doubtful.planned

    def _promising(self, best: Tried | None) -> Allocation | None:
        """The best split by what is known, if it promises clearly more than the best measured one gave.

        Raises NothingFits if none was measured and the devices have stepped back from what was asked for.
        """
        try:
            promised = best_split(self._known.problem)
        except (UsageError, NothingFits) as error:
            if best is not None:
                return None
            if not self._stepped_back:
                raise
            raise NothingFits(f"{error.message} that fits in a joint run", remedy=error.remedy) from None
        if best is None:
            return promised
        is_new = not self._known.has(promised.split)
        value = self._known.problem.value(promised)
        return promised if is_new and value > (1 + WORTH_A_ROUND) * best.value else None

    def _not_steady(self, tried: Tried) -> None:
        """Goes on with the median of all measurements, as the devices' speed comes and goes."""
        self._unsteady = unsteady_machine(tried.planned.split, [one.throughput.median for one in tried.seen])
        self._watch(Doing(self._unsteady.message))
        self._known.count_all()

    def _ceiling(self, split: Shares, proof: Run) -> Pipeline | None:
        """What the user's pipeline gives at most, which the proof, with batches on the devices, does not show."""
        if self.request.settings.data is None:
            return None
        party, solo_sum = self._together.gather(split), alone_in_use(proof.baselines.solo_best, split.batches)
        return ceiling(party, split.global_batch, self._watch, held=proof.throughput, solo_sum=solo_sum)

    def _trace(self, split: Shares) -> None:
        """Traces steps of the final split, after all measuring."""
        tracing = self.request.tracing
        if tracing is not None:
            warning = trace(self._together.gather(split), split.of_used, tracing, self._watch)
            self._trace_warnings += [warning] if warning else []

    def so_far(self) -> Plan | None:
        """The plan of the best proven split, else of the best measured one; None before either."""
        best = self._known.best(proven=True) or self._known.best()
        return None if best is None else self._result(best)

    def _try(self, planned: Allocation) -> None:
        """Measures a split for a moment; if it runs out of memory, the devices step back."""
        self._take(planned, self._once(self._key("round", planned.split), TriedSplit, lambda: self._measured(planned)))

    def _key(self, what: str, split: Shares) -> str:
        """Under which what comes now is kept: rounds and proofs come in the same order when the balance runs again."""
        return content_key(what, self._probe.created, str(split), len(self._rounds), self._proofs)

    def _measured(self, planned: Allocation) -> TriedSplit:
        self._watch(PhaseBegun("rounds"))
        again = " once more" if self._known.has(planned.split) else ""
        self._watch(Doing(f"round {len(self._rounds) + 1}: {planned.split}{again}"))
        try:
            tried = TriedSplit(
                split=planned.split, measured=self._together.measure(planned.split, self.request.round_s)
            )
        except OutOfMemory as error:
            tried = self._out_of_memory(planned.split, error)
        self._once("probe", PlannedWith, lambda: PlannedWith(created=self._probe.created))
        return tried

    def _take(self, planned: Allocation, tried: TriedSplit) -> None:
        """Notes what a split gave, or lowers the limits of devices that ran out of memory."""
        self._watch(RoundDone(self._rounds.note(planned, tried.measured), self.request.devices))
        if tried.measured is None:
            self._failed.add(planned.split)
            self._known.ran_out(planned.split, tried.limits)
        else:
            self._known.learn(planned, tried.measured)
        for device, limit in tried.limits:
            label, asked = self.request.devices[device].label, planned.split.micro_batches[device]
            self._watch(
                Doing(f"{label} ran out of memory at batch {asked} in the joint run: planning with up to {limit}")
            )
            self._stepped_back = True

    def _out_of_memory(self, split: Shares, error: OutOfMemory) -> TriedSplit:
        """The round of a split that ran out of memory: its limits are what fitted before or was found to fit now.

        The first time, if memory contradicts that and the split fits when it is tried once more, it is measured.
        """
        limits, multiple = [], self._known.problem.multiple
        found = self._together.fitting(split, error, believed=split in self._failed)
        self._failed.add(split)
        if not found:
            try:
                return TriedSplit(split=split, measured=self._together.measure(split, self.request.round_s))
            except OutOfMemory as again:
                return self._out_of_memory(split, again)
        for device, fits in found:
            below = [size for size in (*self._rounds.held(device), fits) if size < split.micro_batches[device]]
            limits.append((device, max(below, default=0) // multiple * multiple))
        return TriedSplit(split=split, measured=None, limits=tuple(limits))

    def _prove(self, planned: Allocation) -> None:
        """Runs a split in turns with the even split, then checks whether its devices are as fast as before.

        A device may have changed its speed during the run: its present speed decides.
        """
        key = self._key("out of memory in a proof", planned.split)
        ran_out = self._once.had(key, TriedSplit)
        self._proofs += 1  # under which the windows of the next proof are kept
        if ran_out is not None:
            self._take(planned, ran_out)
            return
        try:
            proof, now = self._proof(planned)
        except OutOfMemory as error:
            ran_out = self._out_of_memory(planned.split, error)
            self._once.keep(key, ran_out)
            self._take(planned, ran_out)
            return
        self._known.learn(planned, proof)
        if not self._rounds.are_over and self._known.moved(planned.split, now):
            self._watch(Doing("a device is not as fast as it was when the run began: planning again"))
            self._take(planned, TriedSplit(split=planned.split, measured=now))

    def _proof(self, planned: Allocation) -> tuple[Run, Measurement]:
        """The run of the split in turns with the even split, and what its devices do at the end of it."""
        self._watch(PhaseBegun("proof"))
        self._watch(Doing(f"proving {planned.split}, in turns with the even split"))
        solo = solo_bests_of(self._probe, self.request.devices, planned.split)
        best_of = self._best_of(planned)
        try:
            return self._together.prove(planned.split, self._driver, self._once, solo, self._proofs, best_of)
        except GpubalanceError as error:
            if self._known.best(proven=True) is not None:
                error.partial = self.so_far()
            elif isinstance(error.partial, Run):
                error.partial = self._result(Tried(planned, (error.partial,)))
            raise

    def _best_of(self, planned: Allocation) -> Callable[[int], Shares | None]:
        """A function of a global batch: its best split in one piece if that uses the same devices, else None."""

        def best(global_batch: int) -> Shares | None:
            found = best_at(self._known.problem, planned.split.used, global_batch)
            return found.split if found and len(found.split.used) == len(planned.split.used) else None

        return best

    def _result(self, tried: Tried) -> Plan:
        known, run = self._known, tried.run
        plan = plan_of(tried.as_measured, known.problem, self._probe, self.request.devices, known.request)
        return plan.model_copy(
            update={
                "settings": self.request.settings,
                "pipeline": self._pipeline or plan.pipeline,
                "warnings": (*plan.warnings, *self._warnings(plan)),
                "balance": Balance(
                    rounds=self._rounds.records,
                    run=run,
                    solo_gap=None if run is None else known.solo_gap(plan.split, run),
                ),
            }
        )

    def _warnings(self, plan: Plan) -> list[Warning_]:
        """Of rounds that were taken over, of batches of another size than the user's own, and of changed speeds."""
        size = self._pipeline.joined_from if self._pipeline else None
        return [
            *(speed_changed(self.request.devices[device], change) for device, change in self._known.changed()),
            *([self._unsteady] if self._unsteady else []),
            *resumed(self._once.again[TriedSplit], "rounds"),
            *([batches_joined(size, plan.global_batch)] if size else []),
            *self._trace_warnings,
        ]
