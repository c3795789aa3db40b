"""`layers` as a whole: the uncut model, its blocks, then the best cut of it, found and proven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpubalance.errors import NothingFits, UsageError
from gpubalance.jobs.endings import attach_partial, raising_gpu_lost
from gpubalance.jobs.events import PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.layers.blocks import model_facts, time_blocks
from gpubalance.jobs.layers.costs import BlockCosts
from gpubalance.jobs.layers.result import result_of, result_so_far
from gpubalance.jobs.layers.rounds import CutRounds
from gpubalance.jobs.layers.uncut import (
    refuse_what_is_faster_uncut,
    uncut,
    with_split_measured,
)
from gpubalance.jobs.measure.party import party_for
from gpubalance.results.layers import Layers
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit


def layers(request: LayersRequest, watch: Watch, journal: Journal) -> Layers:
    """The best cut of the request's model, found and proven by running it.

    Blocks, rounds and windows go into the `journal`; those that are already in it are not measured
    again. Raises Refused for a model that can't be cut, UsageError for one that is better off
    uncut, NothingFits if no cut fits, and what a probe and a worker do; with what was measured
    before as `partial`.
    """
    limit = TimeLimit(request.measuring.time_limit_s)
    journal.watch = watch
    with raising_gpu_lost(request.devices), _no_help_of(journal), ExitStack() as opened:
        alone = []
        for device in request.devices:
            party = party_for(request, watch, limit, device, purpose="layers")
            alone.append(opened.enter_context(party))
        together = opened.enter_context(party_for(request, watch, limit))
        facts = model_facts(alone[0], journal)
        assert facts.graph is not None  # noqa: S101  (of a model that is built to be cut)
        baselines = uncut(request, limit, watch, journal)
        watch(PhaseBegun("blocks"))
        measured = time_blocks(
            request, len(facts.graph.blocks), journal, alone, together, watch
        )
        known = BlockCosts(request, facts.graph, measured)
        refuse_what_is_faster_uncut(request, baselines, known.best().throughput)
        rounds = CutRounds(request, known, together, journal, watch)
        with attach_partial(lambda: result_so_far(rounds, facts, baselines)):
            proof = rounds.find_and_prove()
            baselines = with_split_measured(rounds, baselines, facts.model, limit)
        return result_of(rounds, proof, facts, baselines, complete=True)


@contextmanager
def _no_help_of(journal: Journal) -> Iterator[None]:
    """Makes what is refused in the block not offer --resume.

    With the journal it would be refused again.
    """
    try:
        yield
    except (UsageError, NothingFits):
        journal.helps = False
        raise
