"""Fresh children, one after the other, each of which has loaded TensorFlow by the time it is wanted."""

from __future__ import annotations

from gpubalance.settings.device import Device
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.worker import Worker


class Children:
    """Children of one device. With `ahead` the next one is started when one is taken.

    Loading TensorFlow takes seconds. The next child does that while the one before builds its model, when nothing is
    measured yet, and then waits. It touches the device only when it is opened, after the one before it has ended.
    """

    def __init__(self, device: Device, *, ahead: bool, deadline_s: float | None, limit: TimeLimit = NO_LIMIT) -> None:
        self._device = device
        # A plain CPU device is measured by what its cores do: nothing else must run on them.
        self._ahead = ahead and not (device.simulated and device.profile is None)
        self._deadline_s = deadline_s
        self._limit = limit
        self._next: Worker | None = None
        self.started = 0

    def take(self, *, last: bool = False) -> Worker:
        """A child that is not opened yet. After the `last` one no other is started ahead."""
        taken, self._next = self._next or self._start(), None
        if self._ahead and not last:
            self._next = self._start()
        self.started += 1
        return taken

    def _start(self) -> Worker:
        return Worker([self._device], "probe", deadline_s=self._deadline_s, limit=self._limit)

    def kill(self) -> None:
        """Ends the one that waits; for another thread than that which takes them."""
        if self._next is not None:
            self._next.kill()

    def close(self) -> None:
        """Ends the one that waits, and what is left of it."""
        if self._next is not None:
            self._next.end()
            self._next = None
