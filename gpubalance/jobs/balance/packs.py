"""The size of packs in which a balance's devices sum their gradients."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Doing
from gpubalance.jobs.keep.journal import content_key
from gpubalance.numbers.units import format_bytes, format_percent, format_seconds
from gpubalance.planning.packs import sizes_beside
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


def choose_packs(
    together: Together, split: BatchSplit, before: Measurement, round_s: float | None
) -> Measurement | None:
    """Goes on with packs of the size with which the split is fastest, and returns what that gave.

    That is None if the size stays that of arithmetic. Others are tried where sync is a large part
    of the step, and nobody has said a size. Where no sum can hide behind compute, there is nothing
    to choose.
    """
    if together.request.settings.pack_bytes is not None:
        return None
    if not _can_hide(together, split):
        return None
    facts = together.gather(split).facts
    arithmetic = TriedPacks(pack_bytes=facts.pack_bytes or 0, measured=before)
    # The same after an interruption, whatever the link shows then.
    own_key = content_key("packs", str(split), "own")
    own = together.journal.get_or_make(own_key, TriedPacks, lambda: arithmetic)
    sync_part = before.sync_s / before.step_time_s.median
    others: set[int] = set()
    if sync_part > _WORTH_TRYING:
        others = sizes_beside(own.pack_bytes, facts.model.gradient_bytes)
    if not own.pack_bytes and not others:
        return None  # a training finds that out by itself
    if others:
        text = f"sync is {format_percent(sync_part)} of a step, {format_seconds(before.sync_s)}"
        sizes = "packs of gradients instead of all at once"
        if own.pack_bytes:
            sizes = f"smaller and larger packs than {format_bytes(own.pack_bytes)}"
        together.watch(Doing(f"{text}: trying {sizes}"))
    fastest = own
    for size in sorted(others):
        tried = _tried(together, split, size, round_s)
        if _is_faster(tried, fastest):
            fastest = tried
    together.sum_in_packs(fastest.pack_bytes)
    return None if fastest is own else fastest.measured


def _can_hide(together: Together, split: BatchSplit) -> bool:
    """Whether devices have some gradients before others.

    A compiled step gives all of them at its end, and so does a device that follows a profile.
    """
    if len(split.used) == 1 or together.request.settings.xla:
        return False
    devices = together.request.devices
    return all(devices[place].profile is None for place in split.used)


def _is_faster(tried: TriedPacks, fastest: TriedPacks) -> bool:
    if tried.measured is None or fastest.measured is None:
        return False
    rate = fastest.measured.throughput.median
    return tried.measured.throughput.median > (1 + _WORTH_ANOTHER) * rate


def _tried(
    together: Together, split: BatchSplit, size: int, round_s: float | None
) -> TriedPacks:
    def measured() -> TriedPacks:
        together.sum_in_packs(size)
        try:
            return TriedPacks(
                pack_bytes=size, measured=together.measure(split, round_s)
            )
        except OutOfMemory as error:
            packs = (
                f"packs of {format_bytes(size)}" if size else "all gradients at once"
            )
            together.watch(Doing(f"{error.message} with {packs}"))
            return TriedPacks(pack_bytes=size, measured=None)

    key = content_key("packs", str(split), size)
    return together.journal.get_or_make(key, TriedPacks, measured)
