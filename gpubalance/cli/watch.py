"""Several listeners of one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpubalance.jobs.events import Event, Watch


def both(*watches: Watch) -> Watch:
    """Tells each of them every event, in this order."""

    def tell(event: Event) -> None:
        for watch in watches:
            watch(event)

    return tell
