"""A split on its devices: what its steps and its monitor know of it, and may change."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from gpubalance.devices.machine import Machine, find_machine
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.errors import BadInput, EnvironmentFault, PlanMismatch, UsageError
from gpubalance.numbers.stats import median
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.choices import Precision, one_of
from gpubalance.settings.cluster import Cluster, cluster_of
from gpubalance.settings.device import Device, Host, JointProfile, hosts_of
from gpubalance.settings.record import LARGEST_TIME_SCALE
from gpubalance.settings.requests import refuse_together
from gpubalance.settings.settings import AS_USUAL, Summing
from gpubalance.training.keras_functions import Trainer
from gpubalance.training.launched import reports

if TYPE_CHECKING:
    from gpubalance.engine.replicas import Replicas
    from gpubalance.results.plan import Plan


Gpus: TypeAlias = Sequence[int | str] | int | str | None
Simulate: TypeAlias = int | str | Path | None


def machine_for(
    gpus: Gpus,
    simulate: Simulate,
    hosts: Sequence[Host] = (),
    time_scale: float = 1.0,
) -> tuple[Machine, tuple[Device, ...]]:
    """The machine, and those of its devices that a script names.

    Raises what `gpubalance run` raises. A process does not ask other hosts for their GPUs: `hosts`
    are those of simulated devices, which take `time_scale` times as long as their profile says.
    """
    _check_time_scale(time_scale)
    if hosts and simulate is None:
        raise UsageError(
            "hosts= needs simulate=: a process learns of other hosts' GPUs only from "
            "a plan",
            remedy="make a plan with gpubalance balance --hosts, then split = "
            "gpubalance.load_plan(PLAN)",
        )
    machine = find_machine(simulate, hosts, option=IN_A_SCRIPT)
    machine = machine.slowed(time_scale, option=IN_A_SCRIPT)
    if gpus is None:
        return machine, machine.select(None)
    named = [gpus] if isinstance(gpus, int | str) else gpus
    try:
        return machine, machine.select([str(gpu) for gpu in named])
    except UsageError as error:
        if type(gpus) is int:  # meant as how many
            error.remedy = f"gpus=[0, 1] selects two devices\n{error.remedy}"
        raise


def _check_time_scale(time_scale: Any) -> None:
    """Raises UsageError for what is no factor on a profile's times."""
    is_number = isinstance(time_scale, int | float) and not isinstance(time_scale, bool)
    if not (is_number and 0 < time_scale <= LARGEST_TIME_SCALE):
        raise UsageError(
            f"time_scale is {time_scale!r}",
            remedy="give a number above 0: time_scale=8 makes everything in a profile "
            "take 8 times as long",
        )


def check_choice(name: str, value: object, choice: Any) -> None:
    """Raises UsageError for what is none of a choice's words; `name` is the argument's."""
    if value not in get_args(choice):
        raise UsageError(f"{name} is {value!r}", remedy=f"give {one_of(choice)}")


def cluster_for(used: Iterable[Device]) -> Cluster | None:
    """This process's place among a split's devices, from TF_CONFIG; None on one host.

    Raises UsageError for several hosts without a process for each device, PlanMismatch for too many
    or few processes.
    """
    devices = tuple(used)
    if len(hosts_of(devices)) <= 1:
        return None
    cluster = cluster_of(os.environ)
    labels = ", ".join(device.label for device in devices)
    if cluster is None:
        raise UsageError(
            f"the split's devices are on several hosts, {labels}, and this process is "
            "not on any of them",
            remedy="start a process for each: gpubalance launch PLAN SCRIPT",
        )
    if len(cluster.addresses) != len(devices):
        raise PlanMismatch(
            f"TF_CONFIG has {len(cluster.addresses)} workers, but the split has "
            f"{len(devices)} devices: {labels}",
            remedy="start one process per device, in the plan's order: gpubalance "
            "launch PLAN SCRIPT does that",
        )
    return cluster


def check_monitor(shares: BatchSplit, every: Any, noise: Any, *, writes: bool) -> None:
    """Raises UsageError for what no monitor can do.

    If this process `writes`, raises EnvironmentFault for a file that it can't write.
    """
    if not isinstance(every, int) or every < 1:
        raise UsageError(
            f"every={every!r} is not possible: a monitor timestamps every Nth step, N "
            "from 1 on",
            remedy="every=1 timestamps each step",
        )
    if noise and sum(shares.counts) < 2:
        raise UsageError(
            "the gradient noise scale needs at least two parts of a batch, but one "
            "device has it in one piece",
            remedy=f"divide it in two: micro_batches={[-(-shares.global_batch // 2)]}",
        )
    if writes and isinstance(noise, str | Path) and noise:
        _check_writable(Path(noise))


def _check_writable(path: Path) -> None:
    """Raises EnvironmentFault at once for a file that could not be written later."""
    folder = path.resolve().parent
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise EnvironmentFault(
            f"noise={path} is not a file in a folder that exists and can be written to",
            remedy=f"give a file name, and create its folder: mkdir -p {folder}",
        )


class DeviceSplit(Trainer):
    """The devices that have samples, their shares, and how they train together.

    `shares` may change between steps; `limits` are the most samples that each device takes at a
    time, `fixed_samples` how many take as long as its step's fixed cost, None where unknown.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        shares: BatchSplit,
        joint: JointProfile,
        summing: Summing = AS_USUAL,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__()
        self.devices = tuple(devices[i] for i in shares.used)
        refuse_together(self.devices, summing.all_reduce, devices)
        self._cluster = cluster
        self._joint = joint
        self._summing = summing
        self.shares = shares.without_idle
        self.limits = _known_limits(self.shares)
        self.fixed_samples: Sequence[float | None] = ()
        self.takes_any_batch = False
        self.precision: Precision | None = None  # that the scope sets
        self.plan: Plan | None = None
        self.plan_file: str | Path | None = None  # where the plan was
        self.simulate: Simulate = None  # what the plan was loaded with
        self.warned: set[str] = set()
        # Else the scope will load it
        if len(self.devices) > 1 and "keras" in sys.modules:
            from gpubalance.training.scope import expect

            expect(self)

    @property
    def batches(self) -> tuple[int, ...]:
        """Samples of each device in a step."""
        return self.shares.batches

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Samples that each device takes at a time: its whole batch unless it accumulates."""
        return self.shares.micro_batches

    @property
    def global_batch(self) -> int:
        """Samples of all devices in a step."""
        return self.shares.global_batch

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes: the only one, or the first of several."""
        return self._cluster is None or self._cluster.rank == 0

    @cached_property
    def replicas(self) -> Replicas:
        """The model's replicas on the devices; the first use sets TensorFlow up."""
        from gpubalance.engine.replicas import replicas_on, take_names

        here = self.devices
        if self._cluster is not None:
            here = (self.devices[self._cluster.rank],)
        names = take_names(here, joins=self._cluster is not None)
        # It waits there for the other processes
        reports.note(awaited=self._cluster is not None)
        replicas = replicas_on(
            self.devices, names, self._joint, self._summing, self._cluster
        )
        reports.note(awaited=False)
        return replicas

    def stamp_for(self, monitor: Any) -> None:
        """Tells the monitor of the steps of its model's `fit`, until that ends.

        Raises BadInput if this split does not train it, or another monitor has these steps.
        """
        steps = self.functions_called_here(monitor.model)
        if steps is None:
            raise BadInput(
                "the monitor's split is not what trains the model",
                remedy="use one split for both: split.fit(model, …, "
                "callbacks=[split.monitor()])",
            )
        if steps.monitor not in (None, monitor):
            raise BadInput(
                "fit takes one monitor, not two",
                remedy="one monitor does everything: split.monitor(rebalance=True, "
                "noise=True, log_dir=…)",
            )
        steps.monitor = monitor


def _known_limits(shares: BatchSplit) -> tuple[int | None, ...]:
    """What a device can hold that takes its batch in parts is taken to be one part."""
    limits = []
    for batch, micro_batch in zip(shares.batches, shares.micro_batches, strict=True):
        limits.append(micro_batch if micro_batch < batch else None)
    return tuple(limits)


_RECENT = 9  # steps that tell how long the host takes for one


class ChangeCost:
    """How much longer than others the first steps of the present split took, by the host's clock.

    Those wait for a function of its sizes to be traced, optimised or compiled, and for cuDNN's
    search. `seconds` is 0 before a change.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._usual_s: deque[float] = deque(maxlen=_RECENT)
        self._counts = False

    def begin(self) -> None:
        """Begins another training: its first steps are those of no change."""
        self._counts = False
        self._usual_s.clear()

    def begin_split(self) -> None:
        """Begins a split that was changed."""
        self._counts = True
        self.seconds = 0.0

    def note(self, took_s: float, *, is_first: bool) -> None:
        """Takes a step: `is_first` of its kind with these sizes."""
        if not is_first:
            self._usual_s.append(took_s)
        elif self._counts and self._usual_s:
            self.seconds += max(0.0, took_s - median(self._usual_s))


class StepsLeft:
    """Counts the steps that are left in a `fit`: of its epochs' known length, or of the first's."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins a `fit`."""
        self._number = self._before_epoch = self._epoch = 0
        self._of_epoch: int | None = None

    def begin_after(self, number: int) -> None:
        """Begins with the step after the one of that number."""
        self._number = self._before_epoch = number

    def begin_epoch(self, epoch: int) -> None:
        """Begins an epoch, counted from 0."""
        self._epoch = epoch
        self._before_epoch = self._number

    def note(self, number: int) -> None:
        """Takes a step by its number."""
        self._number = number

    def end_epoch(self) -> None:
        """Notes how long an epoch is."""
        self._of_epoch = self._number - self._before_epoch

    def left(self, params: Mapping[str, Any]) -> int | None:
        """The steps that come after the last one, by a callback's `params`; None if unknown."""
        of_epoch: int | None = params["steps"] or self._of_epoch
        if of_epoch is None:
            return None
        epochs: int = params["epochs"] - self._epoch  # with the present one
        return max(0, epochs * of_epoch - (self._number - self._before_epoch))
