"""The batch split of the uncut model, measured for a moment: what a cut is compared with."""

from __future__ import annotations

from gpubalance.errors import OutOfMemory
from gpubalance.jobs.balance.rounds import measure_split
from gpubalance.jobs.balance.together import Together
from gpubalance.jobs.events import Doing
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.jobs.measure.party import party_for
from gpubalance.results.common import Model
from gpubalance.results.layers import LayersBaselines, SplitBaseline
from gpubalance.system.deadlines import TimeLimit


def with_split_measured(
    rounds: CutRounds, baselines: LayersBaselines, model: Model, limit: TimeLimit
) -> LayersBaselines:
    """The baselines with a measured batch split, if each device holds the model.

    The party of the rounds is left without a worker, as the devices are wanted for the split.
    """
    split = baselines.split
    if split is None:
        return baselines
    rounds.party.end()

    def measured() -> SplitBaseline:
        return _measured(rounds, split, model, limit)

    changes: dict[str, object] = {"split": None}
    try:
        key = f"batch split {split.split}"
        changes["split"] = rounds.journal.get_or_make(key, SplitBaseline, measured)
    except OutOfMemory as error:
        changes["split_why_not"] = error.message
    return baselines.model_copy(update=changes)


def _measured(
    rounds: CutRounds, split: SplitBaseline, model: Model, limit: TimeLimit
) -> SplitBaseline:
    """The split, with what it gives when it is run for as long as a round."""
    request = rounds.request.uncut
    rounds.watch(Doing(f"measuring the batch split {split.split} of the uncut model"))
    with party_for(request, rounds.watch, limit) as party:
        together = Together(request, model, party, rounds.watch, rounds.journal)
        measurement = measure_split(together, split.split, rounds.request.round_s)
    rate = measurement.throughput.median
    return split.model_copy(update={"throughput": rate, "measured": True})
