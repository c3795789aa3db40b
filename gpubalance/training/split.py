"""The split in a training script, by hand or by a plan, and a model that `layers` has cut."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from gpubalance.devices.machine import Machine, find_machine
from gpubalance.devices.profile import IN_A_SCRIPT
from gpubalance.devices.selection import planned_devices, refuse_table
from gpubalance.errors import BadInput, GpubalanceError, UsageError
from gpubalance.planning.model import Curve, fixed_samples
from gpubalance.results.layers import Layers
from gpubalance.results.plan import Plan
from gpubalance.results.records import result_of
from gpubalance.settings.batch_split import BatchSplit, shares_of
from gpubalance.settings.choices import AllReduce, Gradients, Precision
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile, hosts_of
from gpubalance.settings.requests import launched_split
from gpubalance.settings.settings import AS_USUAL, Summing
from gpubalance.training.device_split import (
    DeviceSplit,
    Gpus,
    Simulate,
    check_choice,
    check_monitor,
    cluster_for,
    machine_for,
)
from gpubalance.training.keras_functions import KerasFunctions, Trainer


class Pipelined(Trainer):
    """A model's layers in stages on devices.

    Training gives the same as one device that takes the same micro-batches and sums their
    gradients. Batch normalisation and dropout see one micro-batch at a time, as on one device with
    micro-batches. No batch may be larger than the result's global batch. Once it trains, each
    weight is on its stage's device; the model saves and predicts as before. `fit` raises BadInput
    for a model that can't be cut, PlanMismatch for another than the one that was cut.
    """

    called = "layers"

    def __init__(
        self, result: Layers, devices: Sequence[Device], joint: JointProfile
    ) -> None:
        super().__init__()
        self.result = result
        self.devices = tuple(devices)
        self._joint = joint

    @cached_property
    def names(self) -> tuple[str, ...]:
        """TensorFlow's names for the devices; the first use sets TensorFlow up.

        A device without a stage has none: it is not taken, and need not be here.
        """
        from gpubalance.engine.replicas import take_names

        used = [stage.device for stage in self.result.stages]
        taken = take_names([self.devices[number] for number in used])
        names = dict(zip(used, taken, strict=True))
        return tuple(names.get(number, "") for number in range(len(self.devices)))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Build, load and compile the model in here.

        Its weights are in the host's memory until it trains. The first call sets TensorFlow up.
        Raises EnvironmentFault if TensorFlow was used before with other devices.
        """
        _ = self.names
        import tensorflow as tf

        from gpubalance.engine import keras_patches
        from gpubalance.training.measured import use_measured

        if tf.distribute.has_strategy():
            raise BadInput(
                "the scope() of a plan from gpubalance layers was entered inside the "
                "scope of other devices",
                remedy="un-indent it",
            )
        use_measured(self.result.settings.precision, warns=True)
        with tf.device("/CPU:0"), keras_patches.without_xla():
            yield

    def _functions_for(self, model: Any) -> KerasFunctions:
        names = self.names
        from gpubalance.training.pipelined_steps import PipelinedSteps

        return PipelinedSteps(model, self.result, self.devices, names, self._joint)


class Split(DeviceSplit):
    """How many samples of each global batch every device gets.

    Training with it gives what one device with the whole global batch would give: each sample
    weighs the same wherever it is, a weight regulariser counts once, and losses, metrics and logs
    are those of all samples. Each device draws its own randomness, such as dropout. Batch
    normalisation is local to a device, as in every data-parallel trainer: a device with few samples
    has noisier statistics, and the moving averages are the devices' mean, weighted by samples.
    `BatchNormalization(synchronized=True)` takes them over the global batch, and then is exact too.
    A loss that is not a mean or sum over samples, such as Dice's over a batch, becomes the devices'
    mean, weighted by samples, and warns.

    A `tf.data.Dataset`, batched or not, is regrouped into global batches of the split's size; so
    are arrays, unless `batch_size` gives another global batch. Batches of other sizes (from a
    generator or PyDataset, or smaller ones of a dataset in global batches) are dispatched in the
    split's proportion.
    """

    def __init__(
        self,
        gpus: Gpus = None,
        batches: Sequence[int] = (),
        *,
        ratios: Sequence[int] | None = None,
        micro_batches: Sequence[int] | None = None,
        all_reduce: AllReduce = "auto",
        pack_bytes: int | None = None,
        gradients: Gradients = "full",
        precision: Precision | None = None,
        simulate: Simulate = None,
        time_scale: float = 1.0,
        hosts: Sequence[str] = (),
    ) -> None:
        """A batch for each of the GPUs, in their order, or ratios of any batch.

        `micro_batches` are given where a device takes its batch in parts. `ratios` divide any
        global batch in this proportion: 4 and 3 of 1000 are 571 and 429. `all_reduce`, `pack_bytes`
        and `gradients` are how gradients are summed, as --all-reduce, --pack-bytes and --gradients
        take it; `precision` is what `scope()` sets for the whole process, as --precision takes it,
        None for what the script has. `simulate` is a device profile or a number of plain CPU
        devices, as --simulate takes it; with `hosts`, so many are on each of them. `time_scale`
        makes everything in the profile take so many times as long, as --time-scale does. Over
        several hosts this process is the one of its devices that TF_CONFIG says.

        Raises UsageError for batches or an all-reduce that do not fit the devices, and what
        `gpubalance run` raises for devices that are not here.
        """
        if ratios is not None and (batches != () or micro_batches is not None):
            raise UsageError(
                "give batches or ratios, not both: ratios divide a batch of any size",
                remedy="leave one of them out",
            )
        machine, devices = machine_for(gpus, simulate, hosts, time_scale)
        if ratios is None and isinstance(batches, tuple | list) and not batches:
            raise UsageError(
                "the split has neither batches nor ratios",
                remedy="batches=[20, 12] gives each device its samples of every step, "
                "ratios=[5, 3] divides a batch of any size; `gpubalance balance` "
                "finds the best split",
            )
        if ratios is None:
            shares = shares_of(batches, micro_batches or (), len(devices))
        else:
            shares = shares_of(ratios, (), len(devices), what="ratios")
        check_choice("all_reduce", all_reduce, AllReduce)
        check_choice("gradients", gradients, Gradients)
        if pack_bytes is not None and not (type(pack_bytes) is int and pack_bytes >= 0):
            raise UsageError(
                f"pack_bytes is {pack_bytes!r}",
                remedy="give a number of bytes, or None",
            )
        if precision is not None:
            check_choice("precision", precision, Precision)
        cluster = cluster_for(devices[i] for i in shares.used)
        summing = Summing(all_reduce, pack_bytes, gradients)
        super().__init__(devices, shares, machine.joint, summing, cluster)
        self.takes_any_batch = ratios is not None
        self.precision = precision

    @classmethod
    def of(
        cls,
        devices: Sequence[Device],
        shares: BatchSplit,
        joint: JointProfile,
        summing: Summing = AS_USUAL,
        cluster: Cluster | None = None,
    ) -> Split:
        """The split of devices that are known already."""
        split = cls.__new__(cls)
        DeviceSplit.__init__(split, devices, shares, joint, summing, cluster)
        return split

    def __repr__(self) -> str:
        parts = []
        for device, batch in zip(self.devices, self.batches, strict=True):
            parts.append(f"{device.label} {device.name}: {batch}")
        return f"Split({', '.join(parts)})"

    def scope(self) -> AbstractContextManager[Any]:
        """Build, load and compile the model in here.

        It is the scope of a tf.distribute strategy on the split's devices. Then the model's own
        `fit`, `evaluate` and `predict` are the split's.

        The first call sets TensorFlow up. A plan's precision rules: the process has it from now on.
        Raises EnvironmentFault if TensorFlow was used before with other devices, and BadInput
        inside another split's scope, or for a training loop in it; warns if TensorFlow has already
        taken all of a GPU's memory, and of another policy that the script has set.
        """
        try:
            strategy = self.replicas.strategy
        except GpubalanceError as error:
            # The message says it all: without the lines of ours and TensorFlow's in between.
            raise error.with_traceback(None) from None
        from gpubalance.training.measured import use_measured
        from gpubalance.training.scope import Scope, refuse_inside_others, take_over

        refuse_inside_others(strategy)
        take_over()
        use_measured(self.precision, warns=self.is_first)
        return Scope(self)

    def monitor(
        self,
        *,
        every: int = 50,
        rebalance: bool = False,
        noise: bool | str | Path = False,
        log_dir: str | Path | None = None,
    ) -> Any:
        """A Keras callback for `fit`: each device's compute and wait in every `every`-th step.

        The callback's `epochs` have the medians of each epoch. It warns once when the split no
        longer fits: a card throttles, or this is not the model that was balanced. With `log_dir` it
        also writes for TensorBoard.

        With `rebalance` it changes the split instead, as soon as these steps show that another one
        of the same global batch is surely 2 % faster: between any two steps, in multiples and
        within limits of the plan, of which none are known without a plan. It says so, and at the
        end what that gained; `changes` has what it did.

        With `noise` it measures the gradient noise scale in these steps too, and says at the end
        what the global batch is worth by it. A path is a file for that, which `gpubalance plan
        --noise-scale FILE` reads.

        Raises UsageError for `noise` on one device without micro-batches: two parts of a batch are
        the least that tell it. Raises EnvironmentFault for a file that can't be written, as
        TensorFlow raises an error for a folder. Of several processes only the first one writes, and
        checks that.
        """
        check_monitor(self.shares, every, noise, writes=self.is_first)
        from gpubalance.training.monitor import Monitor

        return Monitor(
            self, every=every, rebalance=rebalance, noise=noise, log_dir=log_dir
        )

    def _functions_for(self, model: Any) -> KerasFunctions:
        from gpubalance.training.steps import Steps

        return Steps(self, model)


def load_plan(path: str | Path | Plan, *, simulate: Simulate = None) -> Split:
    """The split of a plan, on the devices here.

    The plan is what `gpubalance.balance` returned, or a file that `gpubalance balance -o FILE` or
    `plan -o FILE` wrote. Of a plan for several hosts it is the part that TF_CONFIG gives this
    process. After a loss, `gpubalance launch --restarts` gives it another split.

    `simulate` is the device profile, as for --simulate, of a plan for simulated devices, or the
    number of plain CPU devices on each of the plan's hosts.

    Raises PlanMismatch, with the difference, if the devices here are others, and for a plan of
    `plan --curve`, BadInput for a file that is not a plan, UsageError for one that is not there,
    EnvironmentFault without a GPU. Warns
    of a plan for simulated devices without `simulate`; `fit` warns of a model, a precision or a
    `jit_compile` that it was not measured with.
    """
    plan = result_of(path, Plan)
    refuse_table(plan)
    shares = launched_split(plan.created) or plan.split
    used = shares.used
    chosen = [plan.devices[number] for number in used]
    cluster = cluster_for(chosen)
    is_first = cluster is None or cluster.rank == 0
    machine = _machine_for(plan, path, simulate, warns=is_first)
    if cluster:  # this process has one of them
        planned_devices(plan, [used[cluster.rank]], machine.devices)
        devices = plan.devices
    else:
        devices = planned_devices(plan, used, machine.devices)
    split = Split.of(devices, shares, machine.joint, plan.settings.summing, cluster)
    split.plan = plan
    if not isinstance(path, Plan):
        split.plan_file = path
    split.simulate = simulate
    split.precision = plan.settings.precision
    split.limits = tuple(plan.shares[number].limit for number in used)
    if plan.curves:
        split.fixed_samples = [
            fixed_samples(Curve.through(plan.curves[number]), size)
            for number, size in zip(used, split.micro_batches, strict=True)
        ]
    return split


def load_layers(path: str | Path | Layers, *, simulate: Simulate = None) -> Pipelined:
    """The stages of a result of `gpubalance layers -o FILE`, on the devices here.

    `simulate` is the device profile, as for --simulate, of a result for simulated devices.

    Raises PlanMismatch, with the difference, if the devices here are others, BadInput for a file
    that is no such result, UsageError for one that is not there. Warns of one for simulated
    devices without `simulate`.
    """
    result = result_of(path, Layers)
    machine = _machine_for(result, path, simulate, warns=True)
    used = [stage.device for stage in result.stages]
    remedy = "gpubalance layers cuts it for what is here"
    devices = planned_devices(result, used, machine.devices, remedy)
    return Pipelined(result, devices, machine.joint)


def _machine_for(
    result: Plan | Layers, path: object, simulate: Simulate, *, warns: bool
) -> Machine:
    """The machine to train on.

    It has the result's own devices if they are simulated and nobody says so. With `warns`, it
    warns of that.
    """
    if simulate is not None or not result.devices[0].simulated:
        hosts = [host for host in hosts_of(result.devices) if host is not None]
        machine = find_machine(simulate, hosts, option=IN_A_SCRIPT)
        return machine.slowed(result.settings.time_scale, option=IN_A_SCRIPT)
    machine = Machine(result.devices, JointProfile(), None)
    if not warns:
        return machine
    names = ", ".join(f"{device.label} {device.name}" for device in result.devices)
    if result.devices[0].profile is None:
        how = "on CPUs. simulate= confirms that you want this"
    else:
        how = (
            "on this machine's CPU at their pace, but without what the table [joint] "
            "of their profile adds to a step. simulate= confirms that you want this, "
            "and adds it"
        )
    what = path
    if isinstance(path, Plan):  # as text it is all of its fields
        what = "the plan"
    elif isinstance(path, Layers):
        what = "the result of gpubalance layers"
    warnings.warn(
        f"{what} is for simulated devices ({names}): it trains {how}. For GPUs, "
        "measure without --simulate",
        stacklevel=3,
    )
    return machine
