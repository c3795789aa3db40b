"""How a measurement is made: a split in windows, a device alone, and the options of both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from gpubalance.cli import values
from gpubalance.cli.options import measuring_option
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.cli.options import TrainingOptions
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Measuring, ProbeRequest

_MOST_SECONDS, _DAY_S = 10**7, 86_400
windows_option = partial(measuring_option, "--windows", metavar="N", min=1, max=10_000)
window_duration_option = partial(measuring_option, "--duration", metavar="S")


@dataclass(frozen=True)
class MeasuringOptions:
    """The options of every command that measures."""

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
        measuring_option("--resume", help="Continue an unfinished measurement of the same devices and settings."),
    ] = False
    strict: Annotated[
        bool, measuring_option("--strict", help="Refuse a GPU that another process uses, instead of warning.")
    ] = False
    seed: Annotated[
        int,
        measuring_option(
            "--seed",
            metavar="N",
            help="Seed of samples, weights and noise.",
            callback=values.between(0, 2**31 - 1),
        ),
    ] = 0

    @property
    def deadline_s(self) -> float | None:
        """The longest silence of a worker. Raises UsageError if the option is no valid time."""
        return values.seconds_or_none("--deadline", self.deadline, _DAY_S)

    @property
    def time_limit_s(self) -> float | None:
        """The time for the whole command. Raises UsageError if the option is no valid time."""
        return values.seconds_or_none("--time-limit", self.time_limit, _MOST_SECONDS)


@dataclass(frozen=True)
class WindowOptions:
    windows: Annotated[
        int, windows_option(help="Windows to measure; up to 5/3 as many while the result is not known within ± 1 %.")
    ] = 3
    duration: Annotated[
        float | None,
        window_duration_option(
            help="Seconds that a window takes. Default: until its step time is known within ± 0.5 %, at most 10."
        ),
    ] = None

    def measuring(self, measuring: MeasuringOptions, baseline: choices.Baseline = "even") -> Measuring:
        """The options as part of a request. Raises UsageError for an invalid time."""
        from gpubalance.settings.requests import Measuring

        return Measuring(
            windows=self.windows,
            duration_s=values.seconds_or_none("--duration", self.duration, _DAY_S),
            baseline=baseline,
            seed=measuring.seed,
            deadline_s=measuring.deadline_s,
            time_limit_s=measuring.time_limit_s,
        )


@dataclass(frozen=True)
class ProofOptions(WindowOptions):
    """The options of a proof, which takes no longer than its verdict needs."""

    windows: Annotated[
        int, windows_option(help="Windows of the proof; up to 5/3 as many while it is not known within ± 1 %.")
    ] = 2


@dataclass(frozen=True)
class AloneOptions:
    """How a device is measured alone."""

    max_batch: Annotated[
        int | None,
        measuring_option(
            "--max-batch",
            metavar="N",
            help="Try no larger batch. Default: until memory is full.",
            callback=values.between(1, 10**9),
        ),
    ] = None
    batch_multiple: Annotated[
        int,
        measuring_option(
            "--batch-multiple",
            metavar="N",
            help="Try only multiples of this; if memory holds none, all smaller batches.",
            callback=values.between(1, 10**6),
        ),
    ] = 8
    margin: Annotated[
        str,
        measuring_option("--margin", metavar="SIZE", help="Memory to keep free on each device, such as 512MiB."),
    ] = "0"
    duration: Annotated[
        float | None,
        measuring_option(
            "--duration",
            metavar="S",
            help="Measure each batch size for at least this long, and at most 4 times as long. Default: until it is "
            "known well enough; see gpubalance guide probe.",
        ),
    ] = None
    parallel: Annotated[
        bool,
        measuring_option(
            "--parallel", help="Measure all devices at once, on hosts where they do not disturb each other."
        ),
    ] = False
    ahead: Annotated[
        bool,
        measuring_option(
            "--ahead/--no-ahead", help="Start the next worker, which loads TensorFlow for seconds, before it is needed."
        ),
    ] = True
    dry_run: Annotated[
        bool,
        measuring_option("--dry-run", help="Say what would be measured and how long it would take, and do nothing."),
    ] = False

    def request(
        self, devices: tuple[Device, ...], training: TrainingOptions, measuring: MeasuringOptions
    ) -> ProbeRequest:
        """The request. Raises UsageError for an invalid --margin or duration."""
        from gpubalance.settings.requests import ProbeRequest

        return ProbeRequest(
            devices=devices,
            settings=training.settings(devices),
            max_batch=self.max_batch,
            batch_multiple=self.batch_multiple,
            margin_bytes=values.size("--margin", self.margin),
            duration_s=values.seconds_or_none("--duration", self.duration, 3600),
            time_limit_s=measuring.time_limit_s,
            deadline_s=measuring.deadline_s,
            parallel=self.parallel,
            ahead=self.ahead,
            seed=measuring.seed,
        )
