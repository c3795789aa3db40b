"""The rounds of a balance: which split each measures, and its result or what fits instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpubalance.errors import NothingFits, OutOfMemory, UsageError
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.events import Doing, PhaseBegun, RecordDone, TimeLeft
from gpubalance.jobs.journal import content_key
from gpubalance.jobs.measure.figures import measurement
from gpubalance.jobs.measure.input_pipeline import USUAL_PIPELINE_S
from gpubalance.jobs.measure.joint import ExpectedRun, expected_run
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.out_of_memory import FittingSize, JointMemorySearch
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.window import Workload
from gpubalance.jobs.measure.workload_runner import WARMUP_STEPS, expected_window_s
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.plan import plan_of
from gpubalance.jobs.plan.problem import best_split
from gpubalance.jobs.plan.splits import MeasuredSplit
from gpubalance.numbers.units import DurationRange, format_rate
from gpubalance.planning.leaving import (
    Devices,
    best_split_using_exactly,
    next_subset_to_measure,
)
from gpubalance.planning.problem import Allocation
from gpubalance.results.common import Warning_
from gpubalance.results.plan import Round
from gpubalance.results.probe import Probe
from gpubalance.results.run import InputPipeline, Measurement
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record

# The number of rounds is not known before: the time left is a range, from one round to so many.
# Before the command begins, jobs/phases.py gives one number: it assumes 2 rounds.
_FORESEEN_ROUNDS = 3
# Until a step of all devices is measured, the time left allows for so many times the predicted one.
# That does not cover all: two devices that shared two processor cores took 1.9 times as long.
_SLOWER_TOGETHER = 1.5
_NEAR = 0.01  # splits that differ by at most this fraction are equal but for chance
# To load TensorFlow. `Overhead.starting_s` mostly lacks that: a probe's workers load it ahead.
_LOADING_S = 3.0
_KINDS_OF_STEPS = 2  # with stamps and without
# Gradient sums are timed for this many sets of devices at most. Many devices have many sets, and
# timing one takes a part of a second.
_MAX_TIMED_SETS = 16


class BalanceRounds:
    """The state of a balance: its rounds and proofs so far, and what they taught of the devices.

    `find_and_prove` in balance.py calls `try_split` for each round. `prove` in proof.py counts the
    proofs, and notes one that ran out of memory as a round. The worker group of `joint_workers` is
    regrouped for each split; `balance` ends the group. `request` keeps the user's own pack size,
    even after the balance chose another.
    """

    def __init__(self, joint_workers: JointWorkers, probe: Probe) -> None:
        self.joint_workers = joint_workers
        self.request = request = joint_workers.request
        self.watch = joint_workers.watch
        self.journal = joint_workers.journal
        self.probe = probe
        # The planner keeps memory free for packs, by the pack size in the probe's settings. The
        # probe may be an older one, with another pack size. So it gets the request's settings.
        probe_as_asked = probe.model_copy(update={"settings": request.settings})
        self.estimates = DeviceEstimates(probe_as_asked, request.devices, request.plan)
        self.records: list[Round] = []
        self.splits_out_of_memory: set[BatchSplit] = set()
        # Counted by `prove` in proof.py.
        self.proofs = 0
        # The user's input pipeline, if there is one: `finish` in proof.py measures it at the end.
        self.pipeline: InputPipeline | None = None
        self.warnings: list[Warning_] = []

    @property
    def rounds_out_of_memory(self) -> int:
        """How many rounds ran out of memory."""
        return sum(record.measured is None for record in self.records)

    @property
    def no_rounds_left(self) -> bool:
        """Whether no more splits may be measured.

        As many out-of-memory rounds as there are devices are free, because each shows what fits.
        With three devices and `--rounds 10`, 12 rounds of which 2 ran out of memory count as 10.
        """
        free = min(self.rounds_out_of_memory, len(self.request.devices))
        return len(self.records) - free >= self.request.rounds

    def journal_key(self, what: str, split: BatchSplit) -> str:
        """The journal key of the next round or proof (`what`) of a split.

        The key has the numbers of rounds and proofs so far, because a resumed balance repeats them
        in order.
        """
        created = self.probe.created
        return content_key(what, created, str(split), len(self.records), self.proofs)

    def try_split(self, planned: Allocation) -> None:
        """Measures a planned split for a few seconds, and notes the result.

        If the split runs out of memory, its devices' limits are lowered instead, unless it fits on
        a second try: then it is measured after all. A split that was measured three times is not
        measured again. Instead a warning says so, and from then on every measurement of every split
        counts, whatever the devices' speed was.
        """
        # If the planned global batch is not the user's own, `watch` gets the plan before the first
        # round: the plan says what the new size changes, such as the learning rate.
        own_batch = self.probe.own_batch
        if not self.records and own_batch not in (None, planned.split.global_batch):
            plan = plan_of(self.estimates, planned)
            self.watch(RecordDone(plan, self.request.devices))
        fully_measured = self.estimates.fully_measured(planned.split)
        if fully_measured is not None:
            # The devices' speed comes and goes. The median of all measurements decides from now on.
            # Nothing is measured, so this is no round.
            self.warn(machine_not_steady(fully_measured))
            self.estimates.count_all()
            return
        key = self.journal_key("round", planned.split)
        tried = self.journal.get_or_make(
            key, TriedSplit, lambda: self._measure_round(planned)
        )
        self.note(planned, tried)

    def time_sums(self, devices: Devices) -> None:
        """Times sums of gradients over these devices, and over their smallest measured superset."""
        superset = self.estimates.problem.sync.smallest_measured_superset(devices)
        sums_s = self.joint_workers.time_sums(devices, superset, self.estimates.sums_s)
        self.estimates.sums_s.update(sums_s)

    def warn(self, warning: Warning_) -> None:
        """Adds a warning to the result, and reports it at once."""
        self.warnings.append(warning)
        self.watch(Doing(warning.message))

    def _measure_round(self, planned: Allocation) -> TriedSplit:
        split = planned.split
        step_s = planned.step_time_s
        left = self._left(split, step_s)
        # Only the first round waits for a worker's start. A probe that this balance has made shows
        # how long that takes, a kept one does not.
        probing = self.joint_workers.probing
        start_time_is_known = bool(self.records) or probing.workers > 0
        duration = left.duration if start_time_is_known else None
        self.watch(PhaseBegun("rounds", duration=duration))
        # `left` has the proof's time by this split's step. Until now it was by a step of the probe.
        self.watch(left)
        why = " once more" if self.estimates.is_measured_now(split) else ""
        left_out = self.estimates.left_out_of_measured_superset(split)
        if left_out:
            why = f", as sync may be less without {self.joint_workers.labels(left_out)}"
        self.watch(Doing(f"round {len(self.records) + 1}: {split}{why}"))
        try:
            tried = self._measure(split)
        except OutOfMemory as error:
            tried = self.after_out_of_memory(split, error)
        if not self.records:
            # A balance that is resumed after this round must plan with the same probe. The journal
            # has a new probe already, but not one of an earlier command.
            self.journal.get_or_make("probe", Probe, lambda: self.probe)
        return tried

    def _left(self, split: BatchSplit, step_s: float) -> TimeLeft:
        """What is left of the rounds, with the proof as `later`; the split's step takes `step_s`.

        In the first round a worker must also start, trace a step of each kind on each device, and
        warm up. A start or trace takes as long as in the probe. See also `_SLOWER_TOGETHER`.
        """
        left = self._left_once_warm(split, step_s)
        if self.records:
            return left
        slow = self._left_once_warm(split, _SLOWER_TOGETHER * step_s)
        probing = self.joint_workers.probing
        start_s = _LOADING_S + probing.starting_s / max(1, probing.workers)
        traces = _KINDS_OF_STEPS * len(self.request.devices)
        trace_s = traces * probing.tracing_s / max(1, probing.traced)
        warm_up_s = WARMUP_STEPS * step_s
        once_warm = DurationRange(left.duration.least_s, slow.duration.most_s)
        begins_s = start_s + trace_s + warm_up_s
        return TimeLeft(
            once_warm + DurationRange.about(begins_s),
            DurationRange(left.later.least_s, slow.later.most_s),
            step_s,
        )

    def _left_once_warm(self, split: BatchSplit, step_s: float) -> TimeLeft:
        """The same as `_left` once the split is warmed up, so without any start."""
        rule = StoppingRule.of_round(self.request.round_s)
        round_s = expected_window_s(rule, step_s)
        most_rounds = max(1, _FORESEEN_ROUNDS - len(self.records))
        rounds = DurationRange(round_s, most_rounds * round_s)
        return TimeLeft(rounds, self.expected_proof(split, step_s).duration, step_s)

    def expected_proof(
        self, split: BatchSplit, step_s: float, noise: float | None = None
    ) -> ExpectedRun:
        """About how long the proof of a split takes, and its input pipeline after it.

        `noise` is half the 95 % interval of the step time that one timing gives, as a fraction of
        it; None if unknown.
        """
        splits = 1 if self.is_proven_alone(split) else 2
        expected = expected_run(self.request.measuring, step_s, noise, splits)
        pipeline_s = USUAL_PIPELINE_S if self.request.settings.data else 0.0
        with_pipeline = expected.duration + DurationRange.about(pipeline_s)
        return expected._replace(duration=with_pipeline)

    def is_proven_alone(self, split: BatchSplit) -> bool:
        """Whether a proof of the split has no baseline: it is the even split, or none is wanted."""
        even = BatchSplit.even(split.global_batch, len(split.used))
        return self.request.measuring.baseline == "none" or even == split.without_idle

    def _measure(self, split: BatchSplit) -> TriedSplit:
        left_by_step_s = partial(self._left_once_warm, split)
        round_s = self.request.round_s
        measured = measure_split(self.joint_workers, split, round_s, left_by_step_s)
        return TriedSplit(split=split, measured=measured)

    def after_out_of_memory(self, split: BatchSplit, error: OutOfMemory) -> TriedSplit:
        """After a round or a proof ran out of memory: the split measured after all, or what fits.

        A split's first failure may be due to another program that had the memory for a moment. So
        `_fitting_sizes` may try the split again. If it fits then, the result is empty and the split
        is measured. A second failure is believed: the split is not tried again.
        """
        believed = split in self.splits_out_of_memory
        self.splits_out_of_memory.add(split)
        fitting = self._fitting_sizes(split, error, believed=believed)
        if not fitting:
            try:
                return self._measure(split)
            except OutOfMemory as second_error:
                # Now `_fitting_sizes` does not try the split again, so this list isn't empty.
                fitting = self._fitting_sizes(split, second_error, believed=True)
        largest_sizes = []
        for device, fitting_size in fitting:
            largest = self._largest_fitting(device, split, fitting_size)
            largest_sizes.append(FittingSize(device, largest))
        return TriedSplit(split=split, measured=None, limits=tuple(largest_sizes))

    def _fitting_sizes(
        self, split: BatchSplit, error: OutOfMemory, *, believed: bool
    ) -> list[FittingSize]:
        """See `JointMemorySearch.fitting_sizes`; devices as in the balance's request."""
        worker_group = self.joint_workers.gather(split)
        run_request = self.joint_workers.run_request(split).without_idle
        search = JointMemorySearch(worker_group, run_request, self.watch)
        fitting = search.fitting_sizes(error, believed=believed)
        # `split` has all devices, the request of the search only those with samples.
        return [one._replace(device=split.used[one.device]) for one in fitting]

    def _largest_fitting(
        self, device: int, split: BatchSplit, fitting_size: int
    ) -> int:
        """The largest micro-batch of the device that fitted, now or in an earlier round.

        Only sizes below the split's own, which did not fit, count. The result is rounded down to a
        multiple of the problem's `multiple`; 0 if none fitted.
        """
        sizes = [fitting_size]
        for record in self.records:
            if record.measured is not None:
                sizes.append(record.micro_batches[device])
        below = split.micro_batches[device]
        largest = max((size for size in sizes if size < below), default=0)
        multiple = self.estimates.problem.multiple
        return largest // multiple * multiple

    def note(self, planned: Allocation, tried: TriedSplit) -> None:
        """Adds a round: learns its measurement, or lowers the limits of devices out of memory."""
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
        self.watch(RecordDone(record, self.request.devices))
        if measured is not None:
            self.estimates.learn(planned, measured)
            return
        # `after_out_of_memory` has added the split, unless the round comes from the journal.
        self.splits_out_of_memory.add(split)
        self.estimates.lower_limits(split, tried.limits)
        for device, largest in tried.limits:
            what = f"{self.request.devices[device].label} ran out of memory"
            where = (
                f"at batch {split.micro_batches[device]} when all devices trained "
                "together"
            )
            self.watch(Doing(f"{what} {where}: planning with up to {largest}"))


def next_split(
    estimates: DeviceEstimates,
    time_sums: Callable[[Devices], None],
    *,
    some_ran_out: bool,
) -> Allocation | None:
    """The next split to measure; None if another round would gain nothing.

    The first round measures the planner's best split, or the even split if the probe can't tell
    which of the two is faster. A later round measures the first of these that there is:

    1. a split of fewer devices, if less sync may make it more than 0.4 % better than the best
       measured split, and than the planner's best if rule 2 considers that;
    2. the planner's best, if it is predicted to be more than 0.4 % better than the best measured
       split, and was not measured at its devices' present speed. If the best measured split is
       proven, some device's batch or micro-batch must also change by more than 1 %. If the best
       measured split may be as good, it is measured again instead, until it was measured three
       times. After that the planner's best is measured, unless the best measured split is proven:
       then rule 3 decides, because another proof is not likely to show a difference;
    3. the best measured split or one of its rivals, whichever is known least exactly. A rival is a
       measured split that may be more than 0.4 % better than the best. Without a rival nothing is
       measured. Only splits that were measured less than three times are measured again.

    Raises what `best_split` does if no split was measured. If `some_ran_out` of memory, the error
    is always NothingFits: the devices' limits are then below what the user asked for.
    """
    best_measured = estimates.best()
    planned = _plan_best(estimates, best_measured, some_ran_out=some_ran_out)
    if best_measured is None:  # the first round
        return estimates.even_if_undecided(planned)
    predicted_value = estimates.problem.value(planned)
    gains_enough = predicted_value > (1 + WORTH_A_ROUND) * best_measured.value
    planned_is_better = gains_enough and not estimates.is_measured_now(planned.split)
    is_proven = best_measured.run is not None
    if is_proven:
        planned_is_better &= not _are_near(planned.split, best_measured.planned.split)
    # 1. Fewer devices must beat the better of the two.
    value_to_beat = predicted_value if planned_is_better else best_measured.value
    fewer = _fewer_devices(estimates, time_sums, (1 + WORTH_A_ROUND) * value_to_beat)
    if fewer is not None:
        return fewer
    # 2. The planner's best, unless the best measured split may be as good.
    if planned_is_better:
        if not best_measured.may_have(predicted_value):
            return planned
        if best_measured.may_be_measured_again:
            return best_measured.planned
        if not is_proven:
            return planned
    # 3. What may show which of several measured splits is the best.
    rival = estimates.most_uncertain_rival()
    return None if rival is None else rival.planned


def _are_near(one: BatchSplit, other: BatchSplit) -> bool:
    """Whether no batch or micro-batch of the two differs by more than 1 %."""
    pairs = [
        *zip(one.batches, other.batches, strict=True),
        *zip(one.micro_batches, other.micro_batches, strict=True),
    ]
    return all(abs(first - second) <= _NEAR * second for first, second in pairs)


def _plan_best(
    estimates: DeviceEstimates,
    best_measured: MeasuredSplit | None,
    *,
    some_ran_out: bool,
) -> Allocation:
    """The planner's best split.

    If nothing fits the lowered limits any more, it is the best measured split: no new one follows.
    """
    try:
        return best_split(estimates.problem)
    except (UsageError, NothingFits) as error:
        if best_measured is not None:
            return best_measured.planned
        if not some_ran_out:
            raise
        message = (
            f"{error.message} (by the memory that all devices together have needed)"
        )
        raise NothingFits(message, remedy=error.remedy) from None


def _fewer_devices(
    estimates: DeviceEstimates,
    time_sums: Callable[[Devices], None],
    value_to_beat: float,
) -> Allocation | None:
    """A split of fewer devices whose value may be more than `value_to_beat`, or None.

    A value is what the problem maximises, usually samples per second. `time_sums(devices)` adds to
    the `estimates` the seconds of sums over these devices and over their smallest measured
    superset.
    """
    if estimates.probe.settings.all_reduce == "hierarchical":
        # It can't sum an odd number of devices, and the next subset may have any number.
        return None
    # Each time more sums are timed, until they can show no more or too many were timed.
    while True:
        devices = next_subset_to_measure(estimates.problem, value_to_beat)
        if devices is None:
            return None
        sync = estimates.problem.sync
        superset = sync.smallest_measured_superset(devices)
        timed_sets = estimates.sums_s.keys() | {devices, superset}
        if not sync.sums_can_show_more(devices) or len(timed_sets) > _MAX_TIMED_SETS:
            return best_split_using_exactly(estimates.problem, devices)
        time_sums(devices)


class TriedSplit(Record):
    """The result of a round, as the journal has it.

    `measured` is None if the split ran out of memory. `limits` then has each device that had less
    memory than expected.
    """

    split: BatchSplit
    measured: Measurement | None
    limits: tuple[FittingSize, ...] = ()


def measure_split(
    joint_workers: JointWorkers,
    split: BatchSplit,
    seconds: float | None,
    left_by_step_s: Callable[[float], TimeLeft] | None = None,
) -> Measurement:
    """Measures a split for that many `seconds`. Raises OutOfMemory.

    If `seconds` is None, it measures until the step time is known within ± 0.5 %, or for 3 s. But
    it always takes the fewest timings that `StoppingRule.of_round` allows, even if they take longer
    than 3 s. `left_by_step_s` makes the TimeLeft to report from the seconds of a warm step; without
    it, what is left is this measurement.
    """
    run_request = joint_workers.run_request(split).without_idle
    measurer = Measurer(
        joint_workers.gather(split), joint_workers.journal, joint_workers.watch
    )
    # User data with fewer samples than a global batch is refused.
    workload = Workload(
        run_request.split, run_request.devices, least_samples=split.global_batch
    )
    rule = StoppingRule.of_round(seconds)
    measurer.warm_up(workload)
    step_s = measurer.warm_up_of(workload).step_s
    if step_s:  # 0 if the worker has trained with it before
        if left_by_step_s is None:
            window_s = expected_window_s(rule, step_s)
            left = TimeLeft(DurationRange.about(window_s), step_s=step_s)
        else:
            left = left_by_step_s(step_s)
        joint_workers.watch(left)
    window = measurer.measure_unkept(workload, rule)
    sensors = measurer.sensors(workload)
    # The workload has only the devices with samples. In the result they keep their numbers among
    # all devices of the request: `split.used`.
    return measurement(run_request.split, [window], sensors, used_places=split.used)


def machine_not_steady(measured_split: MeasuredSplit) -> Warning_:
    """The warning that a split's measurements differ by more than another split would gain."""
    rates = []
    for measured in measured_split.counted_measurements:
        rates.append(measured.throughput.median)
    return warning(
        "not-steady/machine",
        split=measured_split.planned.split,
        least=format_rate(min(rates)),
        most=format_rate(max(rates)),
        count=len(rates),
    )


def even_is_faster(
    proof: Measurement,
    even: Measurement,
    even_split: BatchSplit,
    *,
    even_is_as_asked: bool,
    multiple: int,
) -> Warning_:
    """The warning that the even split was faster than the split that was proven beside it.

    `even_is_as_asked`: the even split meets the user's options, such as `--global-batch`. The
    planner tried only batches that are multiples of `multiple`.
    """
    row = "even-is-faster"
    if not even_is_as_asked:
        row += "/not-asked"
    elif any(batch % multiple for batch in even_split.batches):
        row += "/finer"
    return warning(
        row,
        split=proof.split,
        rate=format_rate(proof.throughput.median),
        even=even_split,
        even_rate=format_rate(even.throughput.median),
        even_batches=" ".join(map(str, even_split.batches)),
        multiple=multiple,
    )
