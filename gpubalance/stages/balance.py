"""`balance`: probe, plan, run, and correct the split from what was measured, until another round would gain nothing."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.config import BalanceRequest, RunRequest
from gpubalance.errors import GpubalanceError, Interrupted, NothingFits, OutOfMemory, PartialResult
from gpubalance.planning.gap import Ran, divide_gap
from gpubalance.planning.problem import Allocation
from gpubalance.planning.split import split_text
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Balance, Plan, Round, SoloGap
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Run
from gpubalance.stages.events import Doing, RoundDone, Watch
from gpubalance.stages.fitting import Rig, suggest
from gpubalance.stages.knowledge import Knowledge
from gpubalance.stages.plan import best_split, find_probes, plan_of
from gpubalance.stages.planned import check_model
from gpubalance.stages.probe.saved import ALL, latest, solo_bests
from gpubalance.stages.probe.stage import probe as probe_stage
from gpubalance.stages.run import model_of, run_on, without_empty_shares
from gpubalance.stages.series import Series
from gpubalance.workers.worker import Worker

# Less than this is not worth another round: measuring is not better.
_WORTH_A_ROUND = 0.005
# A device that takes this much longer or shorter than in an earlier round has changed its speed.
_MOVED = 0.05


def balance(request: BalanceRequest, driver: str | None, watch: Watch) -> Plan:
    """The best split of the request's devices, found and proven by running it; `driver` is recorded.

    Raises what the probe, the plan and the run do.
    """
    probe = None if request.fresh else latest(request.devices, request.settings, up_to=request.probe.max_batch or ALL)
    if probe is None:
        probe = _probed(request, driver, watch)
    else:
        watch(Doing(f"planning with the probe of {probe.created}; --fresh makes a new one"))
    balancing = _Balancing(request, probe, driver, watch)
    try:
        return balancing.run()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(getattr(interrupt, "number", int(signal.SIGINT)), partial=balancing.proven()) from None
    except GpubalanceError as error:
        error.partial = error.partial or balancing.proven()
        raise
    finally:
        balancing.close()


def _probed(request: BalanceRequest, driver: str | None, watch: Watch) -> Probe:
    try:
        return probe_stage(request.probe, driver, watch)
    except GpubalanceError as error:
        error.partial = None  # part of a probe, which is kept, is no part of a plan
        raise


@dataclass(frozen=True)
class _Tried:
    split: Allocation
    record: Round


class _Balancing:
    def __init__(self, request: BalanceRequest, probe: Probe, driver: str | None, watch: Watch) -> None:
        self._request = request
        self._probe = probe
        self._driver = driver
        self._watch = watch
        self._probes = find_probes(probe, request.devices)
        self._known = Knowledge(probe, self._probes, request.plan)
        self._tried: list[_Tried] = []
        self._rig: tuple[tuple[int, ...], Rig] | None = None
        self._warm: list[tuple[Worker, bool]] = []  # with accumulation, which is another trace, or without
        self._proven: tuple[Allocation, Run] | None = None
        self._since = 0  # of the rounds, the first after a device changed its speed
        self._warnings: list[Warning_] = []

    def run(self) -> Plan:
        """Rounds until another would gain nothing, then the run, which proves it or sends us back."""
        while True:
            self._approach()
            split = self._best_measured()
            run = self._prove(split)
            self._proven = split, run
            # A device may have changed its speed while the run went on: it has the last word.
            self._known.learn(split, self._measure(split))
            if self._rounds_are_over() or not self._is_worth_a_round(split):
                return self._result(split, run)
            self._watch(Doing("a device is not as fast as it was when the run began: planning again"))
            self._since = len(self._tried)

    def proven(self) -> Plan | None:
        """The plan of the last split that was run, if there is one yet."""
        return None if self._proven is None else self._result(*self._proven)

    def close(self) -> None:
        """Ends the worker."""
        if self._rig is not None:
            self._rig[1].close()
            self._rig = None

    def _rounds_are_over(self) -> bool:
        return len(self._tried) >= self._request.rounds

    def _approach(self) -> None:
        """Tries splits, each by what the ones before it showed."""
        while not self._rounds_are_over():
            split = best_split(self._known.problem)
            measured = self._try(split)
            if measured is None:
                continue
            self._known.learn(split, measured)
            if not self._is_worth_a_round(split):
                return

    def _is_worth_a_round(self, split: Allocation) -> bool:
        """Whether what is known now promises clearly more than that split gives."""
        better = best_split(self._known.problem).throughput
        return better > (1 + _WORTH_A_ROUND) * self._known.again(split).throughput

    def _best_measured(self) -> Allocation:
        """Of the splits that were measured at the devices' present speed the fastest; the last one of equal ones."""
        measured = _rates(self._tried)
        if not measured:
            raise PartialResult(
                f"every split that was tried ran out of memory, {len(self._tried)} of them",
                remedy="--margin keeps more memory free, --rounds tries more",
            )
        now = _rates(self._tried[self._since :]) or measured[-1:]
        best = max(rate for rate, _ in now)
        return next(split for rate, split in reversed(now) if rate * (1 + _WORTH_A_ROUND) >= best)

    def _try(self, split: Allocation) -> Measurement | None:
        """Measures a split for a moment; None where it ran out of memory, and the devices stepped back."""
        number = len(self._tried) + 1
        self._watch(Doing(f"round {number} of at most {self._request.rounds}: {_text(split)}"))
        try:
            measured = self._measure(split)
        except OutOfMemory as error:
            measured = None
            self._step_back(split, error)
        record = Round(
            number=number,
            batches=split.batches,
            micro_batches=split.micro_batches,
            predicted_throughput=split.throughput,
            outcome="oom" if measured is None else "measured",
            measured=measured,
        )
        self._tried.append(_Tried(split, record))
        self._watch(RoundDone(record, self._request.devices))
        return measured

    def _measure(self, split: Allocation) -> Measurement:
        request = self._run_request(split)
        rig, numbers = self._rig_of(split)
        used = without_empty_shares(request)
        series = Series(used.batches, used.micro_batches)
        # A worker is warm once; then a split needs no more than a few steps of its own.
        warm = rig.worker, split.batches != split.micro_batches
        series.settle(rig.worker) if warm in self._warm else series.warm_up(rig.worker)
        self._warm.append(warm)
        return series.window(rig.worker, self._request.round_s).measurement(numbers)

    def _rig_of(self, split: Allocation) -> tuple[Rig, tuple[int, ...]]:
        """A worker of the devices with samples: the one that is there, if it is of the same."""
        numbers = tuple(i for i, batch in enumerate(split.batches) if batch)
        if self._rig is None or self._rig[0] != numbers:
            self.close()
            self._rig = numbers, Rig(without_empty_shares(self._run_request(split)), self._watch)
            check_model(self._probe.model, model_of(self._rig[1].worker), what="probe", remedy="--fresh probes it anew")
        return self._rig[1], numbers

    def _step_back(self, split: Allocation, error: OutOfMemory) -> None:
        """Finds what fits beside each other, and takes it for the limits of those devices that were asked for more."""
        rig, numbers = self._rig_of(split)
        rig.recover()
        sizes = tuple(split.micro_batches[i] for i in numbers)
        found, too_large = suggest(rig, without_empty_shares(self._run_request(split)))
        if found is None:
            raise NothingFits(error.message, remedy="not even one sample a device fits: use a smaller model")
        _, fitting = found
        if error.replica is not None:
            too_large = sorted({*too_large, error.replica})
        for replica in too_large or range(len(numbers)):
            device, multiple = numbers[replica], self._known.problem.multiple
            limit = min(fitting[replica], sizes[replica] - 1) // multiple * multiple
            self._known.step_back(device, limit)
            self._warnings.append(self._stepped_back(device, sizes[replica], limit))

    def _stepped_back(self, device: int, asked: int, limit: int) -> Warning_:
        return Warning_(
            code="joint-out-of-memory",
            message=f"{self._request.devices[device].label} ran out of memory at batch {asked} in the joint run, which "
            f"takes more than a device alone: planned with up to {limit}",
            next="nothing to do; --margin keeps more free from the beginning",
        )

    def _prove(self, split: Allocation) -> Run:
        """The run of the split, in turns with the even split."""
        self._watch(Doing(f"proving {_text(split)}, in turns with the even split"))
        rig, _ = self._rig_of(split)
        request = self._run_request(split)
        try:
            return run_on(rig, request, self._driver, self._watch, solo_bests(request))
        except GpubalanceError as error:
            if isinstance(error.partial, Run):
                error.partial = self._result(split, error.partial)
            raise

    def _run_request(self, split: Allocation) -> RunRequest:
        return RunRequest(
            devices=self._request.devices,
            batches=split.batches,
            micro_batches=split.micro_batches,
            settings=self._request.settings,
            joint=self._request.joint,
            measuring=self._request.measuring,
        )

    def _result(self, split: Allocation, run: Run) -> Plan:
        known = self._known
        plan = plan_of(known.again(split), known.problem, self._probe, self._request.devices, known.request)
        return plan.model_copy(
            update={
                "settings": self._request.settings,
                "warnings": (*plan.warnings, *self._warnings, *self._moved()),
                "balance": Balance(
                    rounds=tuple(tried.record for tried in self._tried), run=run, solo_gap=self._gap(split, run)
                ),
            }
        )

    def _moved(self) -> list[Warning_]:
        """Of devices that changed their speed while they were measured together."""
        changes = [(device, self._known.now[device] / first - 1) for device, first in self._known.first.items()]
        return [
            Warning_(
                code="throttled",
                message=f"{self._request.devices[device].label} became {100 * abs(change):.0f} % "
                f"{'slower' if change > 0 else 'faster'} while it was measured: the split is for its speed at the end",
                next="look at its temperature and power limit (nvidia-smi -q -d PERFORMANCE)",
            )
            for device, change in changes
            if abs(change) > _MOVED
        ]

    def _gap(self, split: Allocation, run: Run) -> SoloGap | None:
        """Null where a device's best alone is not known."""
        bests = [one.solo_best for one in self._probes]
        computes = {replica.device: replica.compute_s for replica in run.replicas}
        ran = [
            Ran(best.throughput, batch, self._known.compute_s(i, split, alone=True), computes.get(i, 0.0))
            for i, (best, batch) in enumerate(zip(bests, split.batches, strict=True))
            if best is not None
        ]
        if len(ran) < len(bests):
            return None
        gap = divide_gap(ran, run.step_time_s.median)
        return SoloGap(
            solo_sum=sum(one.solo_best for one in ran),
            left_out=gap.left_out,
            batch_sizes=gap.batches,
            slowdown=gap.slowdown,
            imbalance=gap.imbalance,
            sync=gap.sync,
            throughput=run.throughput.median,
        )


def _text(split: Allocation) -> str:
    return split_text(split.batches, split.micro_batches)


def _rates(tried: Sequence[_Tried]) -> list[tuple[float, Allocation]]:
    return [(t.record.measured.throughput.median, t.split) for t in tried if t.record.measured is not None]
