"""How a measurement is made: what every command that measures is told, and the windows of a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import values
from gpubalance.cli.options import measuring_option
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.settings.requests import Measuring

_MOST_SECONDS, _DAY_S = 10**7, 86_400


@dataclass(frozen=True)
class MeasuringOptions:
    """What every command that measures takes."""

    time_limit: Annotated[
        float | None,
        measuring_option(
            "--time-limit", metavar="S", help="End after that many seconds, with what has been measured by then."
        ),
    ] = None
    deadline: Annotated[
        float | None,
        measuring_option(
            "--deadline",
            metavar="S",
            help="End a worker that is silent for longer than this. Default: 30 times what such steps took, at least "
            "60 s, and 900 s for a first step.",
        ),
    ] = None
    resume: Annotated[
        bool,
        measuring_option("--resume", help="Go on with an interrupted command of the same devices and settings."),
    ] = False
    strict: Annotated[
        bool, measuring_option("--strict", help="Refuse a GPU that another process uses, instead of warning.")
    ] = False
    seed: Annotated[
        int,
        measuring_option("--seed", metavar="N", min=0, max=2**31 - 1, help="Seed of samples, weights and noise."),
    ] = 0

    @property
    def deadline_s(self) -> float | None:
        """Raises UsageError for what is no time."""
        return values.seconds_or_none("--deadline", self.deadline, _DAY_S)

    @property
    def time_limit_s(self) -> float | None:
        """Raises UsageError for what is no time."""
        return values.seconds_or_none("--time-limit", self.time_limit, _MOST_SECONDS)


@dataclass(frozen=True)
class WindowOptions:
    windows: Annotated[
        int,
        measuring_option(
            "--windows",
            metavar="N",
            min=1,
            max=10_000,
            help="Windows to measure; up to 5/3 as many while the result is not known within ±1 %.",
        ),
    ] = 3
    duration: Annotated[float, measuring_option("--duration", metavar="S", help="Seconds that a window takes.")] = 10.0

    def measuring(self, measuring: MeasuringOptions, baseline: choices.Baseline = "even") -> Measuring:
        """As a request has it. Raises UsageError for what is no time."""
        from gpubalance.settings.requests import Measuring

        return Measuring(
            windows=self.windows,
            duration_s=values.seconds("--duration", self.duration, _DAY_S),
            baseline=baseline,
            seed=measuring.seed,
            deadline_s=measuring.deadline_s,
            time_limit_s=measuring.time_limit_s,
        )
