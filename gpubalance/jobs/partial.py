"""What was measured before an error or an interrupt is given all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpubalance.errors import GpubalanceError, Interrupted


@contextmanager
def giving(partial: Callable[[], Any]) -> Iterator[None]:
    """Every error that leaves the block carries what `partial` returns, unless it carries some already.

    An interrupt of the main thread leaves it as Interrupted.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, partial=partial()) from None
    except GpubalanceError as error:
        error.partial = error.partial or partial()
        raise
