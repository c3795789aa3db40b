"""`balance`: probe, plan, run, correct the split from what was measured, until another round would
gain nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpubalance.errors import GpubalanceError, NothingFits, OutOfMemory, PartialResult, UsageError
from gpubalance.jobs.balance.packs import choose_packs
from gpubalance.jobs.balance.reuse import new_probe, probe_from_before
from gpubalance.jobs.balance.together import Together, TriedSplit
from gpubalance.jobs.endings import attach_partial, lost_gpus_told
from gpubalance.jobs.events import Doing, PhaseBegun, Planned, RoundDone, Watch
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.keep.saved import keep_balance, solo_bests_of
from gpubalance.jobs.measure.joint import JointRun, party_for
from gpubalance.jobs.measure.pipeline import held_against, measure_pipeline
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.warnings import batches_joined, resumed, speed_changed, warning
from gpubalance.jobs.plan.beside import best_at
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates, Tried
from gpubalance.jobs.plan.plan import plan_of
from gpubalance.jobs.plan.problem import best_split, check_asked
from gpubalance.numbers.units import format_rate
from gpubalance.planning.leaving import without_some
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan, Round
from gpubalance.results.probe import Probe
from gpubalance.results.run import InputPipeline, Measurement, Run, alone_in_use
from gpubalance.settings.requests import BalanceRequest
from gpubalance.settings.settings import Settings
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def balance(request: BalanceRequest, watch: Watch, journal: Journal) -> Plan:
    """The best split of the request's devices, found and proven by running it.

    Rounds and windows go into the `journal`; those that are already in it are not measured again.
    Raises what the probe, the plan and the run do.
    """
    check_asked(request)  # before minutes are spent on a probe
    limit, journal.watch = TimeLimit(request.measuring.time_limit_s), watch
    with party_for(request, watch, limit, journal=journal) as party:
        kept = probe_from_before(request, watch, journal)
        probe = kept or new_probe(request, limit, watch, journal, party)
        balancing = Balancing(request, probe, party, watch, journal, model_is_told=kept is None)
        with attach_partial(balancing.so_far), lost_gpus_told(request.devices):
            plan = balancing.run()
            keep_balance(request, plan)
            return plan


@dataclass
class Balancing:
    """The rounds and proofs of a balance, with what has been found so far.

    `party` is regrouped for each split; its owner ends it. A new probe has told what it found of
    the model.
    """

    request: BalanceRequest
    probe: Probe
    party: Party
    watch: Watch
    journal: Journal
    model_is_told: bool = True
    proofs: int = 0
    packs_are_chosen: bool = False
    pipeline: InputPipeline | None = None
    rounds: list[Round] = field(default_factory=list)
    failed: set[Shares] = field(default_factory=set)
    warnings: list[Warning_] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The probe's own settings do not say how gradients are summed, which takes memory.
        probe = self.probe.model_copy(update={"settings": self.request.settings})
        self.known = DeviceEstimates(probe, self.request.devices, self.request.plan)
        self.together = Together(
            self.request, self.probe.model, self.party, self.watch, self.model_is_told
        )

    def run(self) -> Plan:
        """Tries splits until none promises more than was measured, and proves the best until the
        best is proven.
        """
        while True:
            best = self.known.best()
            planned = None if self._rounds_are_over else self._worth_a_round(best)
            if planned is not None:
                self._tell_first(planned)
                often = self.known.too_often(planned.split)
                if often is None:
                    self._try(planned)
                else:
                    self._not_steady(often)
            elif best is None:
                raise PartialResult(
                    f"every split that was tried ran out of memory, {len(self.rounds)} of them",
                    remedy="--margin keeps more memory free, --rounds tries more",
                )
            elif best.run is None and not self.packs_are_chosen:
                self._choose_packs(best)
            elif best.run is None:
                self._prove(best.planned)
            else:
                self._finish(best.planned.split, best.run)
                return self._result(best)

    def so_far(self) -> Plan | None:
        """The plan of the best proven split, else of the best measured one; None before either."""
        best = self.known.best(proven=True) or self.known.best()
        return None if best is None else self._result(best)

    @property
    def _ran_out(self) -> int:
        """How many rounds ran out of memory."""
        return sum(one.measured is None for one in self.rounds)

    @property
    def _rounds_are_over(self) -> bool:
        """Whether no more splits may be measured. One a device may run out of memory without
        counting: it tells what fits.
        """
        counted = len(self.rounds) - min(self._ran_out, len(self.request.devices))
        return counted >= self.request.rounds

    def _worth_a_round(self, best: Tried | None) -> Allocation | None:
        """The next split to measure: one that promises more; one whose devices may need much less
        sync than all that are in use; one whose place among the best is in doubt; or None.

        The best itself is measured once more while it may give what another promises. Raises
        NothingFits if none was measured and the devices have stepped back from what was asked for.
        """
        known = self.known
        try:
            promised = best_split(known.problem)
        except (UsageError, NothingFits) as error:
            if best is None and self._ran_out:
                raise NothingFits(
                    f"{error.message} that fits in a joint run", remedy=error.remedy
                ) from None
            if best is None:
                raise
            promised = best.planned
        if best is None:
            return promised
        value = 0.0 if known.has(promised.split) else known.problem.value(promised)
        if value > (1 + WORTH_A_ROUND) * best.value:
            return best.planned if best.may_give(value) else promised
        fewer = self._without_some((1 + WORTH_A_ROUND) * best.value)
        if fewer is not None:
            return fewer
        doubtful = known.in_doubt()
        return doubtful.planned if doubtful else None

    def _tell_first(self, planned: Allocation) -> None:
        """Says, before the first round, what becomes of the user's own batches, if they have
        another size.
        """
        if not self.rounds and self.probe.own_batch not in (None, planned.split.global_batch):
            self.watch(Planned(plan_of(self.known, planned)))

    def _without_some(self, above: float) -> Allocation | None:
        """A split of fewer devices that may be worth more than that, as their sync is not known."""
        if self.request.settings.all_reduce == "hierarchical":  # it can't sum an odd number of them
            return None
        return without_some(self.known.problem, above)

    def _not_steady(self, tried: Tried) -> None:
        """Goes on with the median of all measurements, as the devices' speed comes and goes."""
        rates = [one.throughput.median for one in tried.seen]
        least, most, count = format_rate(min(rates)), format_rate(max(rates)), len(rates)
        split = tried.planned.split
        self.warnings.append(
            warning("not-steady/machine", split=split, least=least, most=most, count=count)
        )
        self.watch(Doing(self.warnings[-1].message))
        self.known.count_all()

    def _choose_packs(self, best: Tried) -> None:
        """Goes on with the size of packs that is best for this split, and with what it gave."""
        self.packs_are_chosen = True
        split = best.planned.split
        found = choose_packs(
            self.together, self.journal, split, best.seen[-1], self.request.round_s
        )
        if found is not None:
            self.known.forget_together()
            self.known.learn(best.planned, found)

    def _finish(self, split: Shares, proof: Run) -> None:
        """What comes after all measuring of splits: the user's pipeline alone, and a trace."""
        # The proof, with batches on the devices, does not show it.
        if self.request.settings.data is not None:
            solo_sum = alone_in_use(proof.baselines.solo_best, split.batches)
            party, held = self.together.gather(split), proof.throughput
            alone = measure_pipeline(party, split.global_batch, self.watch)
            self.pipeline = held_against(alone, held, solo_sum)
        if self.request.tracing is not None:
            party = self.together.gather(split)
            self.warnings += trace(party, {0: split.without_idle}, self.request.tracing, self.watch)

    def _key(self, what: str, split: Shares) -> str:
        """Under which what comes now is kept: rounds and proofs come in the same order when the
        balance runs again.
        """
        return content_key(what, self.probe.created, str(split), len(self.rounds), self.proofs)

    def _try(self, planned: Allocation) -> None:
        """Measures a split for a moment; if it runs out of memory, the devices step back."""
        key = self._key("round", planned.split)
        self._take(planned, self.journal.get_or_make(key, TriedSplit, lambda: self._round(planned)))

    def _round(self, planned: Allocation) -> TriedSplit:
        split = planned.split
        self.watch(PhaseBegun("rounds"))
        why = " once more" if self.known.has(split) else ""
        away = [self.request.devices[device].label for device in self.known.tried_without(split)]
        if away:
            why = f", as sync may be less without {', '.join(away)}"
        self.watch(Doing(f"round {len(self.rounds) + 1}: {split}{why}"))
        tried = self._measured(split)
        if not self.rounds:
            self.journal.get_or_make("probe", Probe, lambda: self.probe)
        return tried

    def _measured(self, split: Shares) -> TriedSplit:
        try:
            return TriedSplit(
                split=split, measured=self.together.measure(split, self.request.round_s)
            )
        except OutOfMemory as error:
            return self._out_of_memory(split, error)

    def _out_of_memory(self, split: Shares, error: OutOfMemory) -> TriedSplit:
        """The round of a split that ran out of memory: its limits are what fitted before or was
        found to fit now.

        The first time, if memory contradicts that and the split fits when it is tried once more, it
        is measured.
        """
        found = self.together.fitting(split, error, believed=split in self.failed)
        self.failed.add(split)
        if not found:
            return self._measured(split)
        limits, multiple = [], self.known.problem.multiple
        for device, fits in found:
            held = [one.micro_batches[device] for one in self.rounds if one.measured is not None]
            below = [size for size in (*held, fits) if size < split.micro_batches[device]]
            limits.append((device, max(below, default=0) // multiple * multiple))
        return TriedSplit(split=split, measured=None, limits=tuple(limits))

    def _take(self, planned: Allocation, tried: TriedSplit) -> None:
        """Notes what a split gave, or lowers the limits of devices that ran out of memory."""
        split, measured = planned.split, tried.measured
        self.rounds.append(
            Round(
                number=len(self.rounds) + 1,
                batches=split.batches,
                micro_batches=split.micro_batches,
                predicted_throughput=planned.throughput,
                outcome="oom" if measured is None else "measured",
                measured=measured,
            )
        )
        self.watch(RoundDone(self.rounds[-1], self.request.devices))
        if measured is not None:
            self.known.learn(planned, measured)
            return
        self.failed.add(split)
        self.known.ran_out(split, tried.limits)
        for device, limit in tried.limits:
            label, asked = self.request.devices[device].label, split.micro_batches[device]
            at = f"at batch {asked} in the joint run"
            self.watch(Doing(f"{label} ran out of memory {at}: planning with up to {limit}"))

    def _prove(self, planned: Allocation) -> None:
        """Runs a split in turns with the even split, then checks whether its devices are as fast as
        before.

        A device may have changed its speed during the run: its present speed decides. If the even
        split is clearly faster, as on a machine whose speed comes and goes, it is proven too.
        """
        key = self._key("out of memory in a proof", planned.split)
        ran_out = self.journal.load(key, TriedSplit)
        self.proofs += 1  # under which the windows of the next proof are kept
        if ran_out is None:
            try:
                proof, now = self._proof(planned)
            except OutOfMemory as error:
                ran_out = self._out_of_memory(planned.split, error)
                self.journal.keep(key, ran_out)
        if ran_out is not None:
            self._take(planned, ran_out)
            return
        self.known.learn(planned, proof)
        self._compare_with_even(planned, proof)
        if not self._rounds_are_over and self.known.moved(planned.split, now):
            self.watch(
                Doing("a device is not as fast as it was when the run began: planning again")
            )
            self._take(planned, TriedSplit(split=planned.split, measured=now))

    def _compare_with_even(self, planned: Allocation, proof: Run) -> None:
        even, ci95 = proof.baselines.even, proof.speedup_ci95
        if even is None or ci95 is None or ci95[1] >= 1 - WORTH_A_ROUND:
            return
        sizes = {one.device: (one.batch, one.micro_batch) for one in even.replicas}
        batches, micro_batches = zip(
            *(sizes.get(i, (0, 0)) for i in range(len(self.request.devices))), strict=True
        )
        split = Shares(batches, micro_batches)
        rate, even_rate = format_rate(proof.throughput.median), format_rate(even.throughput.median)
        facts = {"split": planned.split, "rate": rate, "even": split, "even_rate": even_rate}
        facts["even_batches"] = " ".join(map(str, split.batches))
        counts = self._is_as_asked(split)
        self.warnings.append(
            warning("even-is-faster" if counts else "even-is-faster/not-asked", **facts)
        )
        self.watch(Doing(self.warnings[-1].message))
        if counts:
            allocated = replace(planned, split=split, step_time_s=even.step_time_s.median)
            self.known.learn(allocated, even)
            # Which it needs, as the largest that fits may be above the limits of the planner.
            self._prove(allocated)

    def _is_as_asked(self, split: Shares) -> bool:
        """Whether it has the global batch and the multiples that were asked for, and leaves memory
        free.
        """
        asked = self.request.plan
        if asked.global_batch not in (None, split.global_batch):
            return False
        if any(batch % (asked.batch_multiple or 1) for batch in split.batches):
            return False
        return not asked.margin_bytes or self.known.fits(split)

    def _proof(self, planned: Allocation) -> tuple[Run, Measurement]:
        """The run of the split in turns with the even split, and what its devices do at the end of
        it.
        """
        self.watch(PhaseBegun("proof"))
        self.watch(Doing(f"proving {planned.split}, in turns with the even split"))
        solo = solo_bests_of(self.probe, self.request.devices, planned.split)
        asked, party = self.together.run_request(planned.split), self.together.gather(planned.split)
        proof = JointRun(asked, party, self.watch, self.journal, solo, self.proofs)
        try:
            return proof.run(), proof.own.last.measurement(planned.split.used)
        except GpubalanceError as error:
            if self.known.best(proven=True) is not None:
                error.partial = self.so_far()
            elif isinstance(error.partial, Run):
                error.partial = self._result(Tried(planned, (error.partial,)))
            raise

    def _result(self, tried: Tried) -> Plan:
        known, run = self.known, tried.run
        plan = plan_of(known, tried.as_measured)
        joined_from = self.pipeline.joined_from if self.pipeline else None
        gap = None if run is None else known.solo_gap(plan.split, run)
        predicted, even = plan.predicted, run.baselines.even if run else None
        if even is not None:  # what fits was tried: it may be another than was predicted
            best = best_at(known.problem, plan.split.used, even.global_batch, plan.split)
            predicted = predicted.model_copy(update={"best_at_even": best})
        changes = {
            "predicted": predicted,
            "settings": self._settings_of(run),
            "pipeline": self.pipeline or plan.pipeline,
            "balance": Balance(rounds=tuple(self.rounds), run=run, solo_gap=gap),
            "warnings": (
                *plan.warnings,
                *(
                    speed_changed(self.request.devices[device], change)
                    for device, change in known.changed()
                ),
                *resumed(self.journal.again[TriedSplit], "rounds"),
                *batches_joined(joined_from, plan.global_batch),
                *self.warnings,
            ),
        }
        return plan.model_copy(update=changes)

    def _settings_of(self, run: Run | None) -> Settings:
        """Those of the proof, with the size of packs that it had: whoever trains with the plan has
        the same.
        """
        settings = self.together.request.settings
        # Where there are no packs, a training finds that out by itself.
        if run is None or not run.pack_bytes:
            return settings
        return settings.model_copy(update={"pack_bytes": run.pack_bytes})
