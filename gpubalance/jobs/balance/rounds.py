"""The rounds of a balance: each measures a split for a moment, or finds out what fits instead."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.balance.tried import TriedSplit, lowered_limits, measure_split
from gpubalance.jobs.balance.warnings import machine_not_steady
from gpubalance.jobs.events import Doing, PhaseBegun, Planned, RoundDone, TimeLeft
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.warm_up import SETTLING_STEPS
from gpubalance.jobs.plan.estimates import DeviceEstimates
from gpubalance.jobs.plan.record import plan_of
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Round
from gpubalance.results.probe import Probe
from gpubalance.results.run import InputPipeline
from gpubalance.settings.batch_split import BatchSplit

# Nobody knows how many rounds follow
_USUAL_ROUNDS = 2


class BalanceRounds:
    """What a balance has done and found so far: its rounds, its proofs, what is known of devices.

    The party of `together` is regrouped for each split; its owner ends it. `request` is what was
    asked for, whatever packs are chosen.
    """

    def __init__(self, together: Together, probe: Probe) -> None:
        self.together = together
        self.request = request = together.request
        self.watch = together.watch
        self.journal = together.journal
        self.probe = probe
        # The probe's own settings do not say how gradients are summed, which takes memory.
        as_asked = probe.model_copy(update={"settings": request.settings})
        self.known = DeviceEstimates(as_asked, request.devices, request.plan)
        self.records: list[Round] = []
        self.failed: set[BatchSplit] = set()
        self.proofs = 0
        self.pipeline: InputPipeline | None = None
        self.warnings: list[Warning_] = []

    @property
    def ran_out(self) -> int:
        """How many of them ran out of memory."""
        return sum(record.measured is None for record in self.records)

    @property
    def are_over(self) -> bool:
        """Whether no more splits may be measured.

        One a device may run out of memory without counting: it tells what fits.
        """
        counted = len(self.records) - min(self.ran_out, len(self.request.devices))
        return counted >= self.request.rounds

    def key(self, what: str, split: BatchSplit) -> str:
        """Under which what comes now is kept.

        Rounds and proofs come in the same order when the balance runs again.
        """
        created = self.probe.created
        return content_key(what, created, str(split), len(self.records), self.proofs)

    def try_split(self, planned: Allocation) -> None:
        """Measures a split for a moment; if it runs out of memory, the devices step back.

        Where measuring it once more would not help, all that was measured of it counts instead.
        """
        # What becomes of the user's own batches, if they have another size.
        if not self.records and self.probe.own_batch not in (
            None,
            planned.split.global_batch,
        ):
            self.watch(Planned(plan_of(self.known, planned)))
        often = self.known.too_often(planned.split)
        if often is not None:
            # Goes on with the median of all measurements, as the devices' speed comes and goes.
            self.warn(machine_not_steady(often))
            self.known.count_all()
            return
        key = self.key("round", planned.split)
        tried = self.journal.get_or_make(key, TriedSplit, lambda: self._round(planned))
        self.note(planned, tried)

    def time_sums(self, devices: frozenset[int]) -> None:
        """Learns what sums over these devices take, and over the measured set around them."""
        around = self.known.problem.sync.around(devices)
        sums_s = self.together.time_sums(devices, around, self.known.sums_s)
        self.known.sums_s.update(sums_s)

    def warn(self, warning: Warning_) -> None:
        """Adds a warning, and says it at once."""
        self.warnings.append(warning)
        self.watch(Doing(warning.message))

    def _round(self, planned: Allocation) -> TriedSplit:
        split = planned.split
        self.watch(PhaseBegun("rounds"))
        self.watch(TimeLeft(self._left_s(planned.step_time_s)))
        why = " once more" if self.known.has(split) else ""
        left_out = self.known.tried_without(split)
        if left_out:
            why = f", as sync may be less without {self.together.labels(left_out)}"
        self.watch(Doing(f"round {len(self.records) + 1}: {split}{why}"))
        tried = self._measured(split)
        if not self.records:
            self.journal.get_or_make("probe", Probe, lambda: self.probe)
        return tried

    def _left_s(self, step_s: float) -> float:
        """What this round takes by its step time, and another one if it is the first."""
        rule = StoppingRule.of_round(self.request.round_s)
        round_s = SETTLING_STEPS * step_s + rule.expected_s(step_s)
        return max(1, _USUAL_ROUNDS - len(self.records)) * round_s

    def _measured(self, split: BatchSplit) -> TriedSplit:
        try:
            measured = measure_split(self.together, split, self.request.round_s)
        except OutOfMemory as error:
            return self.out_of_memory(split, error)
        return TriedSplit(split=split, measured=measured)

    def out_of_memory(self, split: BatchSplit, error: OutOfMemory) -> TriedSplit:
        """The round of a split that ran out of memory, with what its devices hold.

        The first time, if memory contradicts that and the split fits when it is tried once more, it
        is measured.
        """
        believed = split in self.failed
        lowered = lowered_limits(self.together, split, error, believed=believed)
        self.failed.add(split)
        if not lowered:
            return self._measured(split)
        limits = []
        for device, fits in lowered:
            below = split.micro_batches[device]
            limits.append((device, self._largest_fitting(device, fits, below)))
        return TriedSplit(split=split, measured=None, limits=tuple(limits))

    def _largest_fitting(self, device: int, fits: int, below: int) -> int:
        """The largest micro-batch that fitted before, or was found to fit now, below that size."""
        sizes = [fits]
        for record in self.records:
            if record.measured is not None:
                sizes.append(record.micro_batches[device])
        largest = max((size for size in sizes if size < below), default=0)
        multiple = self.known.problem.multiple
        return largest // multiple * multiple

    def note(self, planned: Allocation, tried: TriedSplit) -> None:
        """Notes what a split gave, or lowers the limits of devices that ran out of memory."""
        split = planned.split
        measured = tried.measured
        record = Round(
            number=len(self.records) + 1,
            batches=split.batches,
            micro_batches=split.micro_batches,
            predicted_throughput=planned.throughput,
            outcome="oom" if measured is None else "measured",
            measured=measured,
        )
        self.records.append(record)
        self.watch(RoundDone(record, self.request.devices))
        if measured is not None:
            self.known.learn(planned, measured)
            return
        self.failed.add(split)
        self.known.ran_out(split, tried.limits)
        for device, limit in tried.limits:
            ran_out = f"{self.request.devices[device].label} ran out of memory"
            where = f"at batch {split.micro_batches[device]} in the joint run"
            self.watch(Doing(f"{ran_out} {where}: planning with up to {limit}"))
