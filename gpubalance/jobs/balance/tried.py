"""A split that a balance has tried: what it gave, or what its devices hold instead."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpubalance.errors import NothingFits, OutOfMemory
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.subject import Subject
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Batch, Record


class TriedSplit(Record):
    """What a split gave in a round. If it ran out of memory, `measured` is null.

    `limits` then has (device, its largest micro-batch) for each device that holds less than was
    thought.
    """

    split: BatchSplit
    measured: Measurement | None
    limits: tuple[tuple[Annotated[int, Field(ge=0)], Batch], ...] = ()


def measure_split(
    together: Together, split: BatchSplit, at_least_s: float | None
) -> Measurement:
    """What a split gives, measured for so long; if None, until it is known within ± 0.5 %."""
    used = together.run_request(split).without_idle
    measurer = Measurer(together.gather(split), together.journal, together.watch)
    subject = Subject(used.split, used.devices, least_samples=split.global_batch)
    window = measurer.measure(subject, StoppingRule.of_round(at_least_s))
    sensors = measurer.sensors(subject)
    return measurement(used.split, [window], sensors, used_places=split.used)


def lowered_limits(
    together: Together, split: BatchSplit, error: OutOfMemory, *, believed: bool
) -> list[tuple[int, int]]:
    """(device, micro-batch that fits) of each device that was given more than it holds.

    Empty if the failure was chance: if it is not `believed`, and the whole split fits when it is
    tried once more. Raises NothingFits if no split fits, or the fault that only looks like a lack
    of memory.
    """
    party = together.gather(split)
    request = together.run_request(split).without_idle
    fits = Fitting(party, request, together.watch).suggest(error, believed=believed)
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
