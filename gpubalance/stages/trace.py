"""A profiler trace of some steady steps, for when nothing is measured any more."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.config import Tracing
from gpubalance.errors import GpubalanceError
from gpubalance.planning.split import split_text
from gpubalance.results.common import Warning_
from gpubalance.stages.events import Doing, Watch
from gpubalance.workers.worker import Worker

# https://developer.nvidia.com/ERR_NVGPUCTRPERM
_ALLOW_CUPTI = (
    "CUPTI must be there (it comes with the extra cuda) and open to all users: `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d/, then restart; in a container --cap-add=SYS_ADMIN"
)


def trace(
    worker: Worker, batches: Sequence[int], micro_batches: Sequence[int] | None, tracing: Tracing, watch: Watch
) -> Warning_ | None:
    """Traces steps of a split that has been measured; what the reader must know where that was not wholly possible.

    It comes after all that is measured: a profiler costs time, and leaves some of it behind. No error ends the command
    for it, as what was measured is worth more.
    """
    watch(Doing(f"tracing {tracing.steps} steps of {split_text(batches, micro_batches)}"))
    try:
        missing = worker.trace(batches, micro_batches, tracing)
    except GpubalanceError as error:
        return not_traced(error)
    if missing is None:
        return None
    return Warning_(
        code="trace-without-gpu",
        message=f"the trace has the host's part, and not that of every GPU: {missing}",
        next=_ALLOW_CUPTI,
    )


def not_traced(error: GpubalanceError, where: str = "") -> Warning_:
    """The warning of a trace that there is none of."""
    return Warning_(
        code="not-traced",
        message=f"{where}no trace was recorded: {error.message}",
        next=error.remedy or "run it again with another --trace DIR; what was measured is not touched by this",
    )
