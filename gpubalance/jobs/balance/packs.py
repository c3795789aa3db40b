"""The size of packs in which a balance's devices sum their gradients."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.balance.joint_workers import JointWorkers
from gpubalance.jobs.balance.rounds import measure_split
from gpubalance.jobs.events import Doing
from gpubalance.jobs.keep.journal import content_key
from gpubalance.numbers.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)
from gpubalance.planning.sync import sizes_beside
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record

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
