"""What time it is for this process's devices: by their profiles if they are simulated, else now."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpubalance.engine.pace import Clock, PacedClock


class DeviceTime:
    """The clocks of a process's devices, which all follow a profile or none does."""

    def __init__(self, clocks: Sequence[Clock]) -> None:
        self._paced = [clock for clock in clocks if isinstance(clock, PacedClock)]
        self.is_simulated = bool(self._paced)

    @property
    def now_s(self) -> float:
        """When the devices ended their last step, once they have nothing left to do."""
        if self.is_simulated:
            return max(clock.free_s for clock in self._paced)
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Simulated devices have nothing to do for so long, which is none of their time."""
        for clock in self._paced:
            clock.free_s += seconds

    def begin_timings(self, *, others_compute: bool) -> None:
        """Counts steps anew, and those too slow.

        `others_compute`: other devices compute meanwhile, so simulated ones take longer by their
        profile.
        """
        for clock in self._paced:
            clock.steps = clock.late_steps = 0
            clock.others_compute = others_compute

    def late_part(self) -> float | None:
        """The fraction of the counted steps slower than the profile, on the worst device."""
        parts = [clock.late_steps / clock.steps for clock in self._paced if clock.steps]
        return max(parts, default=None)
