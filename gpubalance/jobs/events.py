"""The events that a job emits while it works. The command line shows them; no job waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from gpubalance.numbers.units import NO_TIME, DurationRange
from gpubalance.results.common import Model
from gpubalance.results.independent import OwnWindow
from gpubalance.results.layers import LayersRound
from gpubalance.results.plan import Plan, Round
from gpubalance.results.probe import CurvePoint, Trial
from gpubalance.results.queue import QueuedCommand, RunningCommand
from gpubalance.results.run import Measurement
from gpubalance.results.timing import Moment
from gpubalance.settings.device import Device
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import Ready


class Doing(NamedTuple):
    """What the job is doing now, and why.

    `stays`: the text still matters after the command has ended. `resumes`: what follows is not
    measured from its beginning, as a journal has a part of it.
    """

    text: str
    stays: bool = False
    resumes: bool = False


class Starting(NamedTuple):
    """Workers start, to do what was said before. They do it once a timing comes."""

    text: str


class PhaseBegun(NamedTuple):
    """A phase of the command begins, and lasts about `duration`; None if that is unknown.

    `later` is about how long all later phases take together. A job gives the name, and `duration`
    if it has measured what the phase trains; `Phases` knows the rest.
    """

    name: str
    number: int = 1
    of: int = 1
    duration: DurationRange | None = None
    later: DurationRange = NO_TIME


class TimeLeft(NamedTuple):
    """About how long the phase still takes.

    After `Phases` it is the whole command, of which `later` is for later phases. A job whose phase
    is the last but one gives `later` if it knows that, else it is NO_TIME. `step_s` is about what a
    step of later phases takes; 0 if that is unknown.
    """

    duration: DurationRange
    later: DurationRange = NO_TIME
    step_s: float = 0.0


class TimingDone(NamedTuple):
    """Some steps are over, warm-up included.

    `name` is "even" for the even split of a joint run and "" for its own split; for a device that
    trains a model of its own it is "alone" or "at once". `compute_s` and `update_s` have a value
    for each replica if its steps were stamped. `gauges` is the latest reading of each GPU.
    """

    name: str
    devices: tuple[Device, ...]
    batches: tuple[int, ...]
    step_s: float
    compute_s: tuple[float, ...] | None
    update_s: tuple[float, ...] | None
    gauges: tuple[Moment | None, ...]


class WindowDone(NamedTuple):
    """A window of steps is measured: its `number`, and `of` how many that were planned.

    `name` is "even" for the even split of a joint run and "" for its own. Independent models have
    an OwnWindow each; then `name` is "alone" or "at once".
    """

    number: int
    of: int
    name: str
    devices: tuple[Device, ...]
    measured: Measurement | tuple[OwnWindow, ...]


class RecordDone(NamedTuple):
    """A record of the result is complete, of these devices; its type says what was done.

    CurvePoint   a batch size of a device's curve is measured
    Trial        a batch was tried for a device's batch limit
    Plan         a split is planned before any is tried, and the user's own batches become others
    Round        a split was tried on the way to the best one
    LayersRound  a cut of a model was tried, whose steps have `global_batch` samples
    """

    record: CurvePoint | Trial | Plan | Round | LayersRound
    devices: tuple[Device, ...]
    global_batch: int = 0


class DeviceDone(NamedTuple):
    """A device's probe has ended, whole or not."""

    device: Device


class ModelBuilt(NamedTuple):
    """A model of the user's is built for a balance, before anything is measured.

    `warned` says what is not exact.
    """

    settings: Settings
    model: Model
    own_batch: int | None
    warned: tuple[str, ...]
    samples: int | None = None

    @classmethod
    def of(cls, settings: Settings, facts: Ready) -> ModelBuilt:
        """The event of what the first worker found."""
        warned = facts.combine_rules.warned
        return cls(settings, facts.model, facts.own_batch, warned, facts.samples)


class PipeWindowDone(NamedTuple):
    """A window of a cut model is measured.

    Throughput and step time are those of all windows so far.
    """

    number: int
    of: int
    throughput: float
    step_time_s: float


class CommandBegun(NamedTuple):
    """A command of a queue begins on a device."""

    device: Device
    command: QueuedCommand


class CommandEnded(NamedTuple):
    """A command of a queue has ended there.

    For lack of memory it is tried once more on `next_on`.
    """

    device: Device
    command: QueuedCommand
    next_on: Device | None


class QueueSeen(NamedTuple):
    """A queue while it runs: how many commands wait and have ended, and what runs.

    All of them will take about `left_s` more; None if nobody knows yet.
    """

    devices: tuple[Device, ...]
    waiting: int
    ended: int
    running: tuple[RunningCommand, ...]
    left_s: float | None


Event = (
    Doing
    | Starting
    | PhaseBegun
    | TimeLeft
    | TimingDone
    | WindowDone
    | PipeWindowDone
    | RecordDone
    | DeviceDone
    | ModelBuilt
    | CommandBegun
    | CommandEnded
    | QueueSeen
)
Watch = Callable[[Event], None]


def one_at_a_time(watch: Watch) -> Watch:
    """A watch that several threads may call: events reach `watch` one after the other."""
    lock = threading.Lock()

    def locked(event: Event) -> None:
        with lock:
            watch(event)

    return locked
