"""The rounds of a balance: which split comes next, what it gives, or what fits instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from gpubalance.errors import NothingFits, OutOfMemory, UsageError
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.events import Doing, PhaseBegun, Planned, RoundDone, TimeLeft
from gpubalance.jobs.keep.journal import content_key
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.memory_search import JointMemorySearch
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Workload
from gpubalance.jobs.measure.workload_runner import SETTLING_STEPS
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.jobs.plan.problem import best_split
from gpubalance.jobs.plan.record import plan_of
from gpubalance.numbers.units import format_rate
from gpubalance.planning.leaving import Devices, next_subset_to_measure, split_of_all
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Round
from gpubalance.results.probe import Probe
from gpubalance.results.run import InputPipeline, Measurement
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Batch, Record

# Nobody knows how many rounds follow
_USUAL_ROUNDS = 2
# Of many devices there are many sets, and a sum over each takes a part of a second.
_MOST_SUMS = 16


class BalanceRounds:
    """What a balance has done and found so far: its rounds, its proofs, what is known of devices.

    The worker group of `joint_workers` is regrouped for each split; its owner ends it. `request` is
    what was asked for, whatever packs are chosen.
    """

    def __init__(self, joint_workers: JointWorkers, probe: Probe) -> None:
        self.joint_workers = joint_workers
        self.request = request = joint_workers.request
        self.watch = joint_workers.watch
        self.journal = joint_workers.journal
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
        often = self.known.measurement_limit_reached(planned.split)
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
        superset = self.known.problem.sync.smallest_measured_superset(devices)
        sums_s = self.joint_workers.time_sums(devices, superset, self.known.sums_s)
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
            why = f", as sync may be less without {self.joint_workers.labels(left_out)}"
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
            measured = measure_split(self.joint_workers, split, self.request.round_s)
        except OutOfMemory as error:
            return self.out_of_memory(split, error)
        return TriedSplit(split=split, measured=measured)

    def out_of_memory(self, split: BatchSplit, error: OutOfMemory) -> TriedSplit:
        """The round of a split that ran out of memory, with what its devices hold.

        The first time, if memory contradicts that and the split fits when it is tried once more, it
        is measured.
        """
        believed = split in self.failed
        lowered = lowered_limits(self.joint_workers, split, error, believed=believed)
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


def next_split(
    known: DeviceEstimates, time_sums: Callable[[Devices], None], *, ran_out: bool
) -> Allocation | None:
    """The next split to measure; None if another round would gain nothing.

    One that promises more, by what is known or by the least sync that fewer devices may have; or
    one whose place among the best is in doubt. The best itself is measured once more while it may
    give what another promises. `time_sums` is called with devices whose sync is unknown, and lets
    `known` learn what sums over them take.

    Raises what `best_split` does if no split was measured; once splits `ran_out` of memory it is
    NothingFits, as the devices have stepped back from what was asked for.
    """
    best = known.best()
    try:
        promised = best_split(known.problem)
    except (UsageError, NothingFits) as error:
        if best is not None:
            promised = best.planned
        elif ran_out:
            message = f"{error.message} that fits in a joint run"
            raise NothingFits(message, remedy=error.remedy) from None
        else:
            raise
    if best is None:
        return known.even_if_undecided(promised)
    above = (1 + WORTH_A_ROUND) * best.value
    value = known.problem.value(promised)
    promises = value > above and not known.has(promised.split)
    if promises:
        above = (1 + WORTH_A_ROUND) * value
    fewer = _fewer_devices(known, time_sums, above)
    if fewer is not None:
        return fewer
    if promises:
        return best.planned if best.may_give(value) else promised
    doubtful = known.most_uncertain_rival()
    return doubtful.planned if doubtful else None


def _fewer_devices(
    known: DeviceEstimates, time_sums: Callable[[Devices], None], above: float
) -> Allocation | None:
    """A split of fewer devices that may be worth more than `above`, by what sums tell, or None."""
    if known.probe.settings.all_reduce == "hierarchical":
        return None  # it can't sum an odd number of devices
    while True:
        devices = next_subset_to_measure(known.problem, above)
        if devices is None:
            return None
        if (
            known.problem.sync.nothing_more_to_learn(devices)
            or len(known.sums_s) > _MOST_SUMS
        ):
            return split_of_all(known.problem, devices)
        time_sums(devices)


class TriedSplit(Record):
    """What a split gave in a round. If it ran out of memory, `measured` is null.

    `limits` then has (device, its largest micro-batch) for each device that holds less than was
    thought.
    """

    split: BatchSplit
    measured: Measurement | None
    limits: tuple[tuple[Annotated[int, Field(ge=0)], Batch], ...] = ()


def measure_split(
    joint_workers: JointWorkers, split: BatchSplit, at_least_s: float | None
) -> Measurement:
    """What a split gives, measured for so long; if None, until it is known within ± 0.5 %."""
    used = joint_workers.run_request(split).without_idle
    measurer = Measurer(
        joint_workers.gather(split), joint_workers.journal, joint_workers.watch
    )
    workload = Workload(used.split, used.devices, least_samples=split.global_batch)
    window = measurer.measure(workload, StoppingRule.of_round(at_least_s))
    sensors = measurer.sensors(workload)
    return measurement(used.split, [window], sensors, used_places=split.used)


def lowered_limits(
    joint_workers: JointWorkers,
    split: BatchSplit,
    error: OutOfMemory,
    *,
    believed: bool,
) -> list[tuple[int, int]]:
    """(device, micro-batch that fits) of each device that was given more than it holds.

    Empty if the failure was chance: if it is not `believed`, and the whole split fits when it is
    tried once more. Raises NothingFits if no split fits, or the fault that only looks like a lack
    of memory.
    """
    worker_group = joint_workers.gather(split)
    request = joint_workers.run_request(split).without_idle
    fits = JointMemorySearch(worker_group, request, joint_workers.watch).suggest(
        error, believed=believed
    )
    if fits == request.split:
        return []
    if fits is None and error.fault is not None:
        raise error.fault
    if fits is None:
        raise NothingFits(
            error.message,
            remedy="not even one sample a device fits: use a smaller model",
        )
    lowered = []
    for place, device in enumerate(split.used):
        size = fits.micro_batches[place]
        if size < request.split.micro_batches[place]:
            lowered.append((device, size))
    return lowered


def machine_not_steady(often: MeasuredSplit) -> Warning_:
    """The warning that the measurements of a split differ more than another would change."""
    rates = [measured.throughput.median for measured in often.current]
    return warning(
        "not-steady/machine",
        split=often.planned.split,
        least=format_rate(min(rates)),
        most=format_rate(max(rates)),
        count=len(rates),
    )


def even_is_faster(
    proof: Measurement, even: Measurement, even_split: BatchSplit, *, is_as_asked: bool
) -> Warning_:
    """The warning that the even split was faster than the split that was proven beside it."""
    row = "even-is-faster"
    if not is_as_asked:
        row += "/not-asked"
    return warning(
        row,
        split=proof.split,
        rate=format_rate(proof.throughput.median),
        even=even_split,
        even_rate=format_rate(even.throughput.median),
        even_batches=" ".join(map(str, even_split.batches)),
    )
