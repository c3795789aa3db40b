"""`balance` as a whole: takes a probe, and finds and proves the best split of its devices."""

from __future__ import annotations

from gpubalance.errors import GpubalanceError, NothingFits, OutOfMemory, PartialResult
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.proof import finish, prove, result_of, result_so_far
from gpubalance.jobs.balance.rounds import BalanceRounds, measure_split, next_split
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.journal import Journal, content_key, journal_of
from gpubalance.jobs.measure.measurer import group_for
from gpubalance.jobs.plan.problem import check_asked
from gpubalance.jobs.plan.splits import MeasuredSplit
from gpubalance.jobs.probe.probe import probe as probe_stage
from gpubalance.jobs.saved import holds_nothing, keep_balance, kept_probe
from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.planning.sync import sizes_beside
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Overhead
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record
from gpubalance.settings.requests import BalanceRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.worker_group import WorkerGroup

# Less sync than this part of a step is not worth two more measurements.
_WORTH_TRYING = 0.05
_WORTH_ANOTHER = 0.01  # of throughput


class TriedPacks(Record):
    """What a split gave with packs of that size; null if it ran out of memory.

    The size is 0 for all gradients at once.
    """

    pack_bytes: int
    measured: Measurement | None


def has_much_sync(measured: Measurement) -> bool:
    """Whether other sizes of packs may be worth trying."""
    return measured.sync_s > _WORTH_TRYING * measured.step_time_s.median


def choose_packs(
    joint_workers: JointWorkers,
    split: BatchSplit,
    before: Measurement,
    round_s: float | None,
) -> Measurement | None:
    """Goes on with packs of the size with which the split is fastest, and returns what that gave.

    That is None if the size stays that of arithmetic. Others are tried where sync is a large part
    of the step.
    """
    if not has_much_sync(before) or not joint_workers.sums_may_hide(split):
        return None
    facts = joint_workers.gather(split).facts
    own = TriedPacks(pack_bytes=joint_workers.pack_bytes[split.used], measured=before)
    others = sizes_beside(own.pack_bytes, facts.model.gradient_bytes)
    if not others:
        return None
    trying = "packs of gradients instead of all at once"
    if own.pack_bytes:
        trying = f"smaller and larger packs than {format_bytes(own.pack_bytes)}"
    part = format_percent(before.sync_s / before.step_time_s.median)
    sync = f"{part} of a step, {format_seconds(before.sync_s)}"
    joint_workers.watch(Doing(f"sync is {sync}: trying {trying}"))
    fastest = own
    try:
        for size in sorted(others):
            tried = _tried(joint_workers, split, size, round_s)
            if _is_faster(tried, fastest):
                fastest = tried
    except BaseException:
        # What is known so far was measured with these.
        joint_workers.sum_in_packs(split, own.pack_bytes)
        raise
    joint_workers.sum_in_packs(split, fastest.pack_bytes)
    joint_workers.watch(Doing(f"continuing with {_words(fastest.pack_bytes)}"))
    return None if fastest is own else fastest.measured


def _words(pack_bytes: int) -> str:
    if not pack_bytes:
        return "all gradients at once"
    return f"gradients in packs of {format_bytes(pack_bytes)}"


def _is_faster(tried: TriedPacks, fastest: TriedPacks) -> bool:
    if tried.measured is None or fastest.measured is None:
        return False
    rate = fastest.measured.throughput.median
    return tried.measured.throughput.median > (1 + _WORTH_ANOTHER) * rate


def _tried(
    joint_workers: JointWorkers, split: BatchSplit, size: int, round_s: float | None
) -> TriedPacks:
    """What the split gives with packs of that size, from the journal if it was tried before."""
    key = content_key("packs", str(split), size)
    tried = joint_workers.journal.load(key, TriedPacks)
    if tried is None:
        tried = _try(joint_workers, split, size, round_s)
        joint_workers.journal.keep(key, tried)
    return tried


def _try(
    joint_workers: JointWorkers, split: BatchSplit, size: int, round_s: float | None
) -> TriedPacks:
    joint_workers.sum_in_packs(split, size)
    try:
        gave = measure_split(joint_workers, split, round_s)
    except OutOfMemory as error:
        joint_workers.watch(Doing(f"{error.message} with {_words(size)}"))
        return TriedPacks(pack_bytes=size, measured=None)
    rate = format_rate(gave.throughput.median)
    joint_workers.watch(Doing(f"{_words(size)}: {rate} samples/s"))
    return TriedPacks(pack_bytes=size, measured=gave)


def balance(request: BalanceRequest, watch: Watch, journal: Journal) -> Plan:
    """The best split of the request's devices, found and proven by running it.

    Rounds and windows go into the `journal`; those that are already in it are not measured again.
    Raises what the probe, the plan and the run do.
    """
    check_asked(request)  # before minutes are spent on a probe
    limit = TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    with group_for(request, watch, limit, journal=journal) as worker_group:
        earlier = probe_from_before(request, watch, journal)
        probe = earlier or new_probe(request, limit, watch, journal, worker_group)
        # A new probe has told what it found of the model.
        model_is_reported = earlier is None
        joint_workers = JointWorkers(
            request,
            probe.model,
            worker_group,
            watch,
            journal,
            model_is_reported,
            probing=Overhead() if earlier else probe.overhead,
        )
        rounds = BalanceRounds(joint_workers, probe)
        with (
            attach_partial(lambda: result_so_far(rounds)),
            raising_gpu_lost(request.devices),
        ):
            plan = find_and_prove(rounds)
            keep_balance(request, plan)
            return plan


def find_and_prove(rounds: BalanceRounds) -> Plan:
    """Tries splits until none promises more than was measured, and proves the best.

    A proof may show that another one is the best: it ends once the best is proven.
    """
    chosen: set[tuple[int, ...]] = set()  # the sets of devices whose packs are chosen
    while True:
        best = rounds.estimates.best()
        # Choose the pack size first: it determines sync, and so which devices pay off.
        if (
            best is not None
            and not chosen
            and has_much_sync(best.counted_measurements[-1])
        ):
            _choose_packs(rounds, best, chosen)
            best = rounds.estimates.best()
        planned = None
        if not rounds.no_rounds_left:
            planned = next_split(
                rounds.estimates,
                rounds.time_sums,
                some_ran_out=rounds.rounds_out_of_memory > 0,
            )
        if planned is not None:
            rounds.try_split(planned)
        elif best is None:
            tried = rounds.rounds_out_of_memory
            raise PartialResult(
                f"every split that was tried ran out of memory, {tried} of them",
                remedy="keep more memory free with --margin, or try more splits with "
                "--rounds",
            )
        elif best.run is not None:
            finish(rounds, best.planned.split, best.run)
            return result_of(rounds, best)
        elif best.planned.split.used not in chosen:
            _choose_packs(rounds, best, chosen)
        else:
            prove(rounds, best.planned)


def _choose_packs(
    rounds: BalanceRounds, best: MeasuredSplit, chosen: set[tuple[int, ...]]
) -> None:
    """Goes on with the size of packs that is best for this split, and with what it gave."""
    split = best.planned.split
    chosen.add(split.used)
    round_s = rounds.request.round_s
    measured = choose_packs(
        rounds.joint_workers, split, best.counted_measurements[-1], round_s
    )
    if measured is not None:
        rounds.estimates.forget_set(split.used)
        rounds.estimates.learn(best.planned, measured)


def probe_for(
    request: BalanceRequest, limit: TimeLimit, watch: Watch, journal: Journal
) -> Probe:
    """The balance's probe: see `probe_from_before`, else `new_probe`."""
    return probe_from_before(request, watch, journal) or new_probe(
        request, limit, watch, journal
    )


def probe_from_before(
    request: BalanceRequest, watch: Watch, journal: Journal
) -> Probe | None:
    """The balance's probe from before an interruption, else a kept one, or None.

    A kept one is of these devices and settings.
    """
    own = journal.load("probe", Probe)  # which --fresh has made
    earlier = own or kept_probe(request)
    if earlier is not None:
        journal.report_resumed()
        text = f"planning with the probe of {earlier.created}"
        if own is None:
            text += "; --fresh makes a new one"
        watch(Doing(text, stays=True))
    return earlier


def new_probe(
    request: BalanceRequest,
    limit: TimeLimit,
    watch: Watch,
    journal: Journal,
    next_group: WorkerGroup | None = None,
) -> Probe:
    """A probe for the balance.

    The worker group of the joint runs, which is `next_group`, loads TensorFlow when the probe of
    the last device begins. If nothing fits on one of the devices, that is no error: the others are
    left.
    """
    journal.begin_anew()
    try:
        with journal_of(request.probe, resume=journal.resume) as own:
            made = probe_stage(request.probe, watch, own, limit, next_group)
    except GpubalanceError as error:
        partial = error.partial
        error.partial = None  # a partial probe, which is kept, is no partial plan
        if not isinstance(error, NothingFits) or not partial:
            raise
        if all(holds_nothing(entry) for entry in partial.probes):
            raise
        watch(Doing(error.message))
        made = partial
    journal.add("probe", made)
    return made
