"""The size of packs in which a balance's devices sum their gradients: that of arithmetic beside two others."""

from __future__ import annotations

from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Doing
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.numbers.units import format_bytes, format_rate, format_seconds
from gpubalance.results.run import Measurement
from gpubalance.settings.record import Record
from gpubalance.settings.shares import Shares

# Less sync than this part of a step is not worth two more measurements.
_WORTH_TRYING = 0.05
_WORTH_ANOTHER = 0.01  # of throughput
_TIMES = 4  # the sizes that are tried are so many times smaller and larger


class TriedPacks(Record):
    """What a split gave with packs of that size."""

    pack_bytes: int
    measured: Measurement


def choose_packs(
    together: Together, journal: Journal, split: Shares, before: Measurement, round_s: float | None
) -> Measurement | None:
    """Goes on with packs of the size with which the split is fastest; what that gave, None if it stays as it is.

    It is tried where sync is a large part of the step, and nobody has said a size. Paced devices have all gradients at
    once, when their profile's time is over, so that packs change nothing.
    """
    settings = together.request.settings
    paced = any(device.profile is not None for device in together.request.devices)
    sync_part = before.sync_s / before.step_time_s.median
    if settings.pack_bytes is not None or settings.xla or paced or sync_part <= _WORTH_TRYING:
        return None
    own_bytes = together.gather(split).facts.pack_bytes
    if not own_bytes:
        return None
    together.watch(
        Doing(
            f"sync is {sync_part:.0%} of a step, {format_seconds(before.sync_s)}: trying smaller and larger packs "
            f"than {format_bytes(own_bytes)}"
        )
    )
    fastest = TriedPacks(pack_bytes=own_bytes, measured=before)
    for size in (own_bytes // _TIMES, own_bytes * _TIMES):
        tried = _tried(together, journal, split, size, round_s)
        if _rate(tried) > (1 + _WORTH_ANOTHER) * _rate(fastest):
            fastest = tried
    together.sum_in_packs(fastest.pack_bytes)
    text = f"packs of {format_bytes(fastest.pack_bytes)} give {format_rate(_rate(fastest))}"
    together.watch(Doing(text))
    return None if fastest.measured is before else fastest.measured


def _tried(together: Together, journal: Journal, split: Shares, size: int, round_s: float | None) -> TriedPacks:
    def measured() -> TriedPacks:
        together.sum_in_packs(size)
        return TriedPacks(pack_bytes=size, measured=together.measure(split, round_s))

    return journal.once(content_key("packs", str(split), size), TriedPacks, measured)


def _rate(tried: TriedPacks) -> float:
    return tried.measured.throughput.median
