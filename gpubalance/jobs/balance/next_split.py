"""Which split a balance measures next."""

from __future__ import annotations

from collections.abc import Callable

from gpubalance.errors import NothingFits, UsageError
from gpubalance.jobs.plan.estimates import WORTH_A_ROUND, DeviceEstimates
from gpubalance.jobs.plan.problem import best_split
from gpubalance.planning.leaving import Devices, split_of_all, without_some
from gpubalance.planning.problem import Allocation

# Of many devices there are many sets, and a sum over each takes a part of a second.
_MOST_SUMS = 16


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
        return promised
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
    doubtful = known.in_doubt()
    return doubtful.planned if doubtful else None


def _fewer_devices(
    known: DeviceEstimates, time_sums: Callable[[Devices], None], above: float
) -> Allocation | None:
    """A split of fewer devices that may be worth more than `above`, by what sums tell, or None."""
    if known.probe.settings.all_reduce == "hierarchical":
        return None  # it can't sum an odd number of devices
    while True:
        devices = without_some(known.problem, above)
        if devices is None:
            return None
        if known.problem.sync.has_sums(devices) or len(known.sums_s) > _MOST_SUMS:
            return split_of_all(known.problem, devices)
        time_sums(devices)
