"""The course of `layers` once the blocks are known: cuts, the proof, the batch split beside it."""

from __future__ import annotations

from gpubalance.jobs.endings import attach_partial
from gpubalance.jobs.layers.batch_split import with_split_measured
from gpubalance.jobs.layers.result import result_of, result_so_far
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.results.layers import Layers, LayersBaselines
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Ready


def find_and_prove(
    rounds: CutRounds, facts: Ready, baselines: LayersBaselines, limit: TimeLimit
) -> Layers:
    """Finds and proves the best cut, then measures the uncut model's split for comparison.

    `facts` are what a worker says of the model and the software. An error has what was measured.
    """
    with attach_partial(lambda: result_so_far(rounds, facts, baselines)):
        proof = rounds.find_and_prove()
        baselines = with_split_measured(rounds, baselines, facts.model, limit)
    return result_of(rounds, proof, facts, baselines, complete=True)
