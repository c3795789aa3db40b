"""What a stage tells while it works. The command line shows it; nothing waits for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpubalance.results.independent import OwnWindow
from gpubalance.results.layers import LayersRound
from gpubalance.results.plan import Round
from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.results.run import Measurement
from gpubalance.results.telemetry import Gauges
from gpubalance.settings.device import Device


@dataclass(frozen=True)
class Doing:
    """What is done now, and why. `stays`: a reader must know it when all is over, too."""

    text: str
    stays: bool = False


@dataclass(frozen=True)
class PhaseBegun:
    """A phase of the whole begins. It will take about `seconds`, and all from now on about `left_s`."""

    name: str
    number: int
    of: int
    seconds: float
    left_s: float


@dataclass(frozen=True)
class TimeLeft:
    """About how long the whole will go on from now, in seconds."""

    seconds: float


@dataclass(frozen=True)
class TimingDone:
    """Some steps of a joint run are over, warm-up included: of the "even" split, or of the run's own ("").

    Or of one device that trains a model of its own, "alone" or "at once" with others.
    `compute_s` and `update_s` are of each replica where they were stamped. `gauges` are the latest reading of each GPU.
    """

    name: str
    devices: tuple[Device, ...]
    batches: tuple[int, ...]
    step_s: float
    compute_s: tuple[float, ...] | None
    update_s: tuple[float, ...] | None
    gauges: tuple[Gauges | None, ...]


@dataclass(frozen=True)
class WindowDone:
    """A window of steps is measured. `name` says of which split: "even" or "" for the run's own."""

    number: int
    of: int
    name: str
    devices: tuple[Device, ...]
    measurement: Measurement


@dataclass(frozen=True)
class TurnDone:
    """A window of models that train independently is measured: of one device "alone", or of all "at once"."""

    number: int
    of: int
    name: Literal["alone", "at once"]
    parts: tuple[OwnWindow, ...]


@dataclass(frozen=True)
class PointDone:
    """A batch size of a device's curve is measured."""

    device: Device
    point: CurvePoint


@dataclass(frozen=True)
class TrialDone:
    """A batch was tried for a device's batch limit."""

    device: Device
    trial: Trial


@dataclass(frozen=True)
class DeviceDone:
    """A device's probe has ended, whole or not."""

    device: Device


@dataclass(frozen=True)
class RoundDone:
    """A split was tried on the way to the best one."""

    round: Round
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class CutDone:
    """A cut of a model over devices was tried on the way to the best one; its steps are of so many samples."""

    round: LayersRound
    devices: tuple[Device, ...]
    global_batch: int


@dataclass(frozen=True)
class PipeWindowDone:
    """A window of a cut model is measured; samples per second and the step time are of all windows until now."""

    number: int
    of: int
    throughput: float
    step_time_s: float


Event = (
    Doing
    | PhaseBegun
    | TimeLeft
    | TimingDone
    | WindowDone
    | TurnDone
    | PointDone
    | TrialDone
    | DeviceDone
    | RoundDone
    | CutDone
    | PipeWindowDone
)
Watch = Callable[[Event], None]


def one_at_a_time(watch: Watch) -> Watch:
    """The same, for several threads."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            watch(event)

    return tell
