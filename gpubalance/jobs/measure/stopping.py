"""How long something is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpubalance.numbers.stats import half_width
from gpubalance.numbers.steady import has_trend
from gpubalance.results.timing import Timing
from gpubalance.settings.measuring import HOPELESS, Measuring

PRECISE_ENOUGH = 0.01
_ROUND_WITHIN = 0.005  # as splits are told apart that differ by less than 1 %
# Long enough that the devices' short idle times at both ends of a timing do not count.
TIMING_S = 0.5
# In a window that ends once its step time is known; as long as in a probe and in a balance's
# rounds, for comparison.
SHORT_TIMING_S = 0.2
LEAST_TIMINGS = 5
_FEWEST = 3  # for an interval
_POINT_S = 3.0
_TIMINGS = 15  # in a round or a point of given length
_LONGEST = 4  # times its usual length, at most, until a point is precise


class StoppingRule(NamedTuple):
    """When something was measured long enough.

    That is `min_s` seconds of steps and `at_least` timings, however long these take; then until the
    step time is precise, or all timings together took `max_s`. Precise means that half the 95 %
    interval of the step time is `within` that part of it. A timing is of as many steps as take
    about `timing_s`, at least one.
    """

    min_s: float
    max_s: float
    timing_s: float
    within: float
    at_least: int = LEAST_TIMINGS

    @classmethod
    def at_most(cls, seconds: float, within: float = PRECISE_ENOUGH) -> StoppingRule:
        """Until it is known within that part, or so long; the fewest timings in any case."""
        return cls(0.0, seconds, SHORT_TIMING_S, within)

    @classmethod
    def of_window(cls, measuring: Measuring) -> StoppingRule:
        """A window of a run: of a given length however precise, or until it is known."""
        max_s = measuring.longest_s
        within = measuring.within
        if within is None:
            return cls(max_s, max_s, TIMING_S, math.inf, at_least=1)
        return cls(0.0, max_s, SHORT_TIMING_S, within)

    @classmethod
    def of_round(cls, seconds: float | None) -> StoppingRule:
        """A round of a balance: of that many seconds, or until it is known within ± 0.5 %."""
        if seconds is None:
            return cls.at_most(_POINT_S, _ROUND_WITHIN)
        return cls(seconds, seconds, seconds / _TIMINGS or SHORT_TIMING_S, math.inf)

    @classmethod
    def of_point(cls, seconds: float | None) -> StoppingRule:
        """A batch size of a probe: for at least so long; None ends as soon as it is precise."""
        usual_s = seconds or _POINT_S
        return cls(
            seconds or 0.0, _LONGEST * usual_s, usual_s / _TIMINGS, PRECISE_ENOUGH
        )

    def is_reached(
        self, timings: Sequence[Timing], *, gpu_is_changing: bool = False
    ) -> bool:
        """Whether these timings are enough.

        No precision is while the step time rises or falls because a GPU's clock or temperature
        changes. Where that does not change the step time it costs no time: cards get warmer at
        every point of a probe. Half the time is enough if all of it would not make the step time
        nearly precise either.
        """
        taken_s = sum(timing.seconds for timing in timings)
        if len(timings) < self.at_least or taken_s < self.min_s:
            return False
        if taken_s >= self.max_s:
            return True
        step_times_s = [timing.seconds / timing.steps for timing in timings]
        known = half_width(step_times_s)
        if known is None or (gpu_is_changing and has_trend(step_times_s)):
            return False
        if known <= self.within:
            return True
        expected = known * math.sqrt(taken_s / self.max_s)  # at the end
        is_hopeless = expected > max(HOPELESS, self.within)
        return is_hopeless and taken_s >= self.max_s / 2

    def expected_s(self, step_s: float, cycle: int = 1, noise: float = 0.0) -> float:
        """The seconds that are probably measured; each timing has at least `cycle` steps.

        One timing gives the step time to ± `noise` (95 %, a fraction), n give it to ± noise/√n.
        Without noise these are the fewest timings.
        """
        timing_s = max(self.timing_s, cycle * step_s)
        fewest_s = self.at_least * timing_s
        precise_after_s = (noise / self.within) ** 2 * timing_s
        return max(self.min_s, fewest_s, min(precise_after_s, self.max_s))

    def less(self, part: float, timings: int) -> StoppingRule:
        """What is left of a window after so many timings in that part of it.

        It is enough for an interval at least.
        """
        at_least = max(min(self.at_least, _FEWEST), self.at_least - timings)
        left = 1 - part
        return self._replace(
            min_s=left * self.min_s, max_s=left * self.max_s, at_least=at_least
        )

    def until(self, within: float) -> StoppingRule:
        """A point's length to get `within` that part.

        A coarser one gets a quarter of the time, in timings a third as long, and as few as give an
        interval.
        """
        if within <= PRECISE_ENOUGH:
            return self._replace(within=within)
        return self._replace(
            within=within,
            max_s=self.max_s / 4,
            timing_s=self.timing_s / 3,
            at_least=_FEWEST,
        )

    @property
    def short_check(self) -> StoppingRule:
        """Half a point's usual length, precise or not: for a first impression."""
        return self._replace(
            min_s=self.min_s / 2,
            max_s=self.max_s / _LONGEST / 2,
            timing_s=self.timing_s / 2,
        )

    @property
    def quick_check(self) -> StoppingRule:
        """A look that ends after the fewest timings allowed."""
        return self.short_check._replace(
            within=math.inf, at_least=_FEWEST, timing_s=self.timing_s / 3
        )
