"""`balance`: probe, plan, run, correct the split from what was measured, until another round would gain nothing."""

from __future__ import annotations

from gpubalance.devices.planned import check_model
from gpubalance.errors import (
    GpubalanceError,
    Interrupted,
    NothingFits,
    OutOfMemory,
    PartialResult,
    UsageError,
)
from gpubalance.jobs.balance.knowledge import Knowledge
from gpubalance.jobs.balance.probing import joint_s, probe_for
from gpubalance.jobs.balance.rounds import EQUAL_WITHIN, Rounds
from gpubalance.jobs.events import Doing, RoundDone, TimeLeft, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.kept import Kept, KeptRound
from gpubalance.jobs.keep.saved_probes import solo_bests
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.joint import JointRun, party_for
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.trace import trace
from gpubalance.jobs.measure.warnings import rounds_taken_over, speed_changed, stepped_back
from gpubalance.jobs.plan import best_split, find_probes, plan_of
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def balance(request: BalanceRequest, driver: str | None, watch: Watch, journal: Journal | None = None) -> Plan:
    """The best split of the request's devices, found and proven by running it; `driver` is recorded.

    Rounds and windows go into the `journal`, and those that are in it are not measured again. Raises what the probe,
    the plan and the run do.
    """
    limit = TimeLimit(request.measuring.time_limit_s)
    kept = Kept(journal, watch)
    probe = probe_for(request, driver, limit, watch, journal, kept)
    balancing = _Balancing(request, probe, driver, limit, watch, kept)
    try:
        with lost_gpus_told(request.devices):
            return balancing.run()
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, partial=balancing.so_far()) from None
    except GpubalanceError as error:
        error.partial = error.partial or balancing.so_far()
        raise
    finally:
        balancing.close()


class _Balancing:
    def __init__(
        self,
        request: BalanceRequest,
        probe: Probe,
        driver: str | None,
        limit: TimeLimit,
        watch: Watch,
        kept: Kept,
    ) -> None:
        self._request = request
        self._probe = probe
        self._driver = driver
        self._watch = watch
        self._kept = kept
        self._known = Knowledge(probe, find_probes(probe, request.devices), request.plan)
        self._rounds = Rounds(request.rounds, len(request.devices))
        self._party = party_for(request, watch, limit)
        self._warm: list[tuple[int, bool]] = []  # which worker, and whether for accumulation, which is another trace
        self._proofs = 0
        self._taken_over = 0
        self._proven: tuple[Allocation, Run] | None = None
        self._stepped_back: list[Warning_] = []
        self._trace_warnings: list[Warning_] = []

    def run(self) -> Plan:
        """Tries splits until another would gain nothing, then proves the best, which may lead to more rounds."""
        while True:
            self._approach()
            best = self._best_measured()
            left = self._kept.left_of(best.split, self._probe.created, ran_out=True)
            if left is not None:
                self._proofs += 1  # the windows of the next proof are kept under this number
                self._take(best, left, again=True)
                continue
            try:
                self._proven = best, self._prove(best)
                # A device may have changed its speed while the run went on: it has the last word.
                self._known.learn(best.split, self._measure(best.split))
            except OutOfMemory as error:
                self._take(best, self._out_of_memory(best.split, error))
                continue
            if self._rounds.are_over or not self._gains(self._best_known(), best):
                self._trace(best.split)
                return self._result(*self._proven)
            self._watch(Doing("a device is not as fast as it was when the run began: planning again"))
            self._rounds.devices_changed()

    def _trace(self, split: Shares) -> None:
        """Traces steps of the final split, once nothing is measured any more."""
        tracing = self._request.tracing
        if tracing is not None:
            warning = trace(self._gather(split), split.of_used, tracing, self._watch)
            self._trace_warnings += [warning] if warning else []

    def so_far(self) -> Plan | None:
        """The plan of the last split that was proven, or else of the best that was measured, if there is one yet."""
        if self._proven is not None:
            return self._result(*self._proven)
        best = self._rounds.best(self._known.limits)
        return None if best is None else self._result(best, None)

    def close(self) -> None:
        """Ends the worker."""
        self._party.end()

    def _approach(self) -> None:
        """Tries splits, each planned by what the ones before it showed."""
        while not self._rounds.are_over:
            tried = self._best_known()
            measured = self._try(tried)
            if measured is None:
                continue
            self._known.learn(tried.split, measured)
            better = self._best_known()
            if self._rounds.has(better.split) or not self._gains(better, tried):
                return

    def _best_known(self) -> Allocation:
        """The best split by what is known. Raises NothingFits where the devices stepped back from what is asked."""
        try:
            return best_split(self._known.problem)
        except UsageError as error:
            if not self._stepped_back:
                raise
            raise NothingFits(f"{error.message} that fits in a joint run", remedy=error.remedy) from None

    def _gains(self, better: Allocation, tried: Allocation) -> bool:
        """Whether a split promises clearly more than the one that was tried gives, by what is known now."""
        return better.throughput > (1 + EQUAL_WITHIN) * self._known.again(tried).throughput

    def _best_measured(self) -> Allocation:
        best = self._rounds.best(self._known.limits)
        if best is None:
            raise PartialResult(
                f"every split that was tried ran out of memory, {len(self._rounds)} of them",
                remedy="--margin keeps more memory free, --rounds tries more",
            )
        return best

    def _try(self, planned: Allocation) -> Measurement | None:
        """Measures a split for a moment; None where it ran out of memory, and the devices stepped back."""
        left = self._kept.left_of(planned.split, self._probe.created)
        if left is not None:
            return self._take(planned, left, again=True)
        self._watch(Doing(f"round {len(self._rounds) + 1}: {planned.split}"))
        self._watch(TimeLeft(joint_s(self._request, rounds=1)))
        try:
            measured = self._measure(planned.split)
            tried = KeptRound(probe=self._probe.created, split=planned.split, measured=measured)
        except OutOfMemory as error:
            tried = self._out_of_memory(planned.split, error)
        return self._take(planned, tried)

    def _take(self, planned: Allocation, tried: KeptRound, *, again: bool = False) -> Measurement | None:
        """Notes what a split gave, and holds the devices back that ran out of memory.

        `again` is for a round that was measured before the balance was interrupted.
        """
        if again:
            self._taken_over += 1
        else:
            self._kept.round(tried)
        self._watch(RoundDone(self._rounds.note(planned, tried.measured), self._request.devices))
        for device, limit in tried.limits:
            self._known.step_back(device, limit)
            micro_batch = planned.split.micro_batches[device]
            self._stepped_back.append(stepped_back(self._request.devices[device], micro_batch, limit))
        return tried.measured

    def _out_of_memory(self, split: Shares, error: OutOfMemory) -> KeptRound:
        limits = self._limits_beside(split, error)
        return KeptRound(probe=self._probe.created, split=split, measured=None, limits=tuple(limits))

    def _measure(self, split: Shares) -> Measurement:
        party, used = self._gather(split), self._run_request(split).of_used
        series = Series(used.split, devices=used.devices, watch=self._watch)
        # A worker is warm once; then a split needs no more than a few steps of its own.
        warm = party.started, split.accumulates
        party.ask(series.settle if warm in self._warm else series.warm_up)
        self._warm.append(warm)
        return party.ask(lambda worker: series.window(worker, self._request.round_s)).measurement(split.used)

    def _gather(self, split: Shares) -> Party:
        """The party of the devices that have samples in this split."""
        self._party.regroup([self._request.devices[i] for i in split.used])
        if not self._party.alive:
            self._party.start()
            check_model(self._probe.model, self._party.facts.model, what="probe", remedy="--fresh probes it again")
        return self._party

    def _limits_beside(self, split: Shares, error: OutOfMemory) -> list[tuple[int, int]]:
        """Each device that was asked for more than it holds beside the others, with its largest micro-batch."""
        party, numbers = self._gather(split), split.used
        fitting, too_large = Fitting(party, self._run_request(split).of_used, self._watch).suggest(error)
        if fitting is None:
            raise NothingFits(error.message, remedy="not even one sample a device fits: use a smaller model")
        if error.replica is not None:
            too_large = sorted({*too_large, error.replica})
        limits = []
        for replica in too_large or range(len(numbers)):
            device, multiple = numbers[replica], self._known.problem.multiple
            sizes = (*self._rounds.held(device), fitting.micro_batches[replica])
            below = [size for size in sizes if size < split.micro_batches[device]]
            limits.append((device, max(below, default=0) // multiple * multiple))
        return limits

    def _prove(self, planned: Allocation) -> Run:
        """The run of the split, in turns with the even split."""
        self._watch(Doing(f"proving {planned.split}, in turns with the even split"))
        party = self._gather(planned.split)
        request, proof = self._run_request(planned.split), self._proofs
        solo = solo_bests(request.devices, planned.split.used, request.settings)
        self._proofs += 1
        try:
            return JointRun(request, party, self._driver, self._watch, self._kept, solo, proof).run()
        except GpubalanceError as error:
            if isinstance(error.partial, Run):
                error.partial = self._result(planned, error.partial)
            raise

    def _run_request(self, split: Shares) -> RunRequest:
        return RunRequest(
            devices=self._request.devices,
            split=split,
            settings=self._request.settings,
            joint=self._request.joint,
            measuring=self._request.measuring,
        )

    def _result(self, planned: Allocation, run: Run | None) -> Plan:
        known = self._known
        plan = plan_of(known.again(planned), known.problem, self._probe, self._request.devices, known.request)
        return plan.model_copy(
            update={
                "settings": self._request.settings,
                "warnings": (*plan.warnings, *self._stepped_back, *self._moved(), *self._over(), *self._trace_warnings),
                "balance": Balance(
                    rounds=self._rounds.records,
                    run=run,
                    solo_gap=None if run is None else self._known.solo_gap(planned.split, run),
                ),
            }
        )

    def _over(self) -> list[Warning_]:
        return [rounds_taken_over(self._taken_over)] if self._taken_over else []

    def _moved(self) -> list[Warning_]:
        """Warnings of devices that changed their speed while they were measured together."""
        return [speed_changed(self._request.devices[device], change) for device, change in self._known.moved()]
