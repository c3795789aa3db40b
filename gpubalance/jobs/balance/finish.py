"""What a balance does once its split is proven: the user's pipeline alone, and a trace."""

from __future__ import annotations

from gpubalance.jobs.balance.rounds import BalanceRounds
from gpubalance.jobs.measure.input_pipeline import held_against, measure_input_pipeline
from gpubalance.jobs.measure.trace import trace
from gpubalance.results.run import Run, alone_in_use
from gpubalance.settings.batch_split import BatchSplit


def finish(rounds: BalanceRounds, split: BatchSplit, proof: Run) -> None:
    """Measures the user's pipeline and traces steps, each if it is asked for."""
    request = rounds.request
    # The proof, with batches on the devices, does not show the pipeline.
    if request.settings.data is not None:
        party = rounds.together.gather(split)
        alone = measure_input_pipeline(party, split.global_batch, rounds.watch)
        solo_sum = alone_in_use(proof.baselines.solo_best, split.batches)
        rounds.pipeline = held_against(alone, proof.throughput, solo_sum)
    if request.tracing is not None:
        party = rounds.together.gather(split)
        rounds.warnings += trace(
            party, {0: split.without_idle}, request.tracing, rounds.watch
        )
