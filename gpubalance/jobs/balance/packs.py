"""The size of packs in which a balance's devices sum their gradients."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Doing
from gpubalance.jobs.keep.journal import content_key
from gpubalance.numbers.units import format_bytes, format_percent, format_seconds
from gpubalance.planning.packs import within_bounds
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record

# Less sync than this part of a step is not worth two more measurements.
_WORTH_TRYING = 0.05
_WORTH_ANOTHER = 0.01  # of throughput
_TIMES = 4  # the sizes that are tried are so many times smaller and larger


class TriedPacks(Record):
    """What a split gave with packs of that size; null if it ran out of memory."""

    pack_bytes: int
    measured: Measurement | None


def choose_packs(
    together: Together, split: BatchSplit, before: Measurement, round_s: float | None
) -> Measurement | None:
    """Goes on with packs of the size with which the split is fastest, and returns what that gave.

    That is None if the size stays that of arithmetic. Two others are tried where sync is a large
    part of the step, and nobody has said a size. Where gradients are not summed in packs, there is
    nothing to choose.
    """
    journal = together.journal
    own_bytes = together.gather(split).facts.pack_bytes
    if not own_bytes or together.request.settings.pack_bytes is not None:
        return None
    # The same after an interruption, whatever the link shows then.
    own_key = content_key("packs", str(split), "own")
    own = journal.get_or_make(
        own_key, TriedPacks, lambda: TriedPacks(pack_bytes=own_bytes, measured=before)
    )
    sync_part = before.sync_s / before.step_time_s.median
    fastest = own
    rate = before.throughput.median
    if sync_part > _WORTH_TRYING:
        text = f"sync is {format_percent(sync_part)} of a step, {format_seconds(before.sync_s)}"
        together.watch(
            Doing(
                f"{text}: trying smaller and larger packs than {format_bytes(own.pack_bytes)}"
            )
        )
        others = {
            within_bounds(own.pack_bytes // _TIMES),
            within_bounds(own.pack_bytes * _TIMES),
        }
        for size in sorted(others - {own.pack_bytes}):
            tried = _tried(together, split, size, round_s)
            if (
                tried.measured
                and tried.measured.throughput.median > (1 + _WORTH_ANOTHER) * rate
            ):
                fastest = tried
                rate = tried.measured.throughput.median
    together.sum_in_packs(fastest.pack_bytes)
    return None if fastest is own else fastest.measured


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
            together.watch(Doing(f"{error.message} with packs of {format_bytes(size)}"))
            return TriedPacks(pack_bytes=size, measured=None)

    key = content_key("packs", str(split), size)
    return together.journal.get_or_make(key, TriedPacks, measured)
