"""The warnings of a balance about what its rounds and its proof gave."""

from __future__ import annotations

from gpubalance.jobs.plan.measured_split import MeasuredSplit
from gpubalance.numbers.units import format_rate
from gpubalance.results.common import Warning_
from gpubalance.results.run import Measurement
from gpubalance.results.warnings import warning
from gpubalance.settings.batch_split import BatchSplit


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
