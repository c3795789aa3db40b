"""`layers`: cuts a model over several devices, runs it as a pipeline, corrects the cut by measurements, proves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpubalance.errors import NothingFits, UsageError
from gpubalance.jobs.events import Doing, PhaseBegun, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.once import Once
from gpubalance.jobs.layers.alone import alone, refuse_what_is_faster_uncut
from gpubalance.jobs.layers.blocks import check_cuts, time_blocks
from gpubalance.jobs.layers.cutting import Cutting
from gpubalance.jobs.layers.known import Known
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.results.layers import Layers
from gpubalance.settings.device import Device
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Build, Party


def layers(request: LayersRequest, driver: str | None, watch: Watch, journal: Journal | None = None) -> Layers:
    """The best cut of the request's model, found and proven by running it; `driver` is recorded.

    Blocks, rounds and windows go into the `journal`; those that are already in it are not measured again. Raises
    Refused for a model that can't be cut, UsageError for one that is better off uncut, NothingFits if no cut fits, and
    what a probe and a worker do; with what was measured before as `partial`.
    """
    limit, once = TimeLimit(request.measuring.time_limit_s), Once(journal, watch)
    with lost_gpus_told(request.devices), ExitStack() as open_parties:

        def party(*devices: Device, purpose: str) -> Party:
            build = Build(request.settings, request.joint, request.measuring.seed, layers=True)
            made = Party(
                devices,
                build=build,
                purpose=purpose,
                deadline_s=request.measuring.deadline_s,
                limit=limit,
                tell=lambda text: watch(Doing(text)),
            )
            return open_parties.enter_context(made)

        alone_parties = [party(device, purpose="layers") for device in request.devices]
        together = party(*request.devices, purpose="run")
        check_cuts(request, once, alone_parties[0])
        uncut = alone(request, driver, limit, watch, journal)
        with _no_help_of(once):
            refuse_what_is_faster_uncut(request, uncut)
        watch(PhaseBegun("blocks"))
        known = Known(request, time_blocks(request, once, alone_parties, together, watch))
        with _no_help_of(once):
            refuse_what_is_faster_uncut(request, uncut, known.best().throughput)
            return Cutting(request, known, uncut, driver, together, once, watch, limit).run()


@contextmanager
def _no_help_of(once: Once) -> Iterator[None]:
    """Makes what is refused in the block not offer --resume: with the journal it would be refused again."""
    try:
        yield
    except (UsageError, NothingFits):
        once.cannot_help()
        raise
