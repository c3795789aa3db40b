"""The options that several commands take, in groups; a group also makes the object that its options describe.

Each option is declared once, here. `groups.grouped` gives a command the options of its groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gpubalance.cli import complete, config, function_name, values
from gpubalance.errors import UsageError
from gpubalance.settings import choices

if TYPE_CHECKING:
    from gpubalance.devices.machine import Machine
    from gpubalance.settings.device import Device
    from gpubalance.settings.requests import Settings


def in_panel(name: str) -> Any:
    """Typer's Option for one panel, in which the help shows options together."""
    return partial(typer.Option, rich_help_panel=name)


devices_option, training_option, split_option = in_panel("Devices"), in_panel("Training"), in_panel("Split")
measuring_option, output_option = in_panel("Measuring"), in_panel("Output")


SimulateOption = Annotated[
    str | None,
    devices_option(
        "--simulate",
        metavar="FILE|N",
        help="Use simulated devices instead of GPUs: a profile (see configs/), or N plain CPU devices.",
        autocompletion=complete.profiles,
    ),
]
HostsOption = Annotated[
    str | None,
    devices_option(
        "--hosts",
        metavar="NAME,…",
        help="Use the devices of these hosts, named alpha:0 alpha:1 beta:0; ray: of a Ray cluster's nodes.",
    ),
]
ViaOption = Annotated[
    str | None,
    devices_option(
        "--via", metavar="PREFIX", help="The command that reaches a host. Default: ssh -o BatchMode=yes {host}."
    ),
]


@dataclass(frozen=True)
class DeviceOptions:
    gpus: Annotated[
        list[str] | None,
        devices_option(
            "--gpus",
            metavar="N…",
            help="Devices by index, UUID or bus id: --gpus 0 1. Default: all.",
            autocompletion=complete.devices,
        ),
    ] = None
    simulate: SimulateOption = None
    hosts: HostsOption = None
    via: ViaOption = None

    def machine(self) -> Machine:
        """The devices here, on these hosts, or simulated. Raises what `find_machine` and `reach` raise."""
        from gpubalance.devices.hosts import reach
        from gpubalance.devices.machine import find_machine

        return find_machine(self.simulate, reach(self.hosts, self.via))

    @property
    def named(self) -> list[str] | None:
        """The devices that --gpus names, one by one; None for all."""
        return values.words(self.gpus)


ModelOption = Annotated[
    str | None,
    training_option(
        "--model",
        metavar="NAME",
        help="probe, small, a keras.applications name, package.module:function, file.py:function or saved.keras. "
        "Default: probe on GPUs, small on simulated devices.",
        autocompletion=complete.models,
        callback=function_name.model,
    ),
]


PrecisionOption = Annotated[
    choices.Precision,
    training_option("--precision", metavar="KIND", help="float32, tf32, mixed_float16 or mixed_bfloat16."),
]
XlaOption = Annotated[bool, training_option("--xla/--no-xla", help="Compile the forward and backward pass.")]
InputOption = Annotated[
    choices.Input,
    training_option(
        "--input", metavar="PLACE", help="Keep the samples on the device, or feed them from the host: device, host."
    ),
]


DataOption = Annotated[
    str | None,
    training_option(
        "--data",
        metavar="NAME",
        help="Train on your own samples: file.py:function or package.module:function, which gives a "
        "tf.data.Dataset, a PyDataset or arrays. Default: random samples.",
        callback=function_name.data,
    ),
]


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained on each device."""

    model: ModelOption = None
    precision: PrecisionOption = "float32"
    xla: XlaOption = False
    input_: InputOption = "device"
    data: DataOption = None

    def settings(self, devices: Sequence[Device]) -> Settings:
        """The settings of a request; by default the model suits the devices. Raises what `settings_of` raises."""
        model = self.model or choices.default_model(simulated=devices[0].simulated)
        return settings_of(model, self.data, precision=self.precision, xla=self.xla, input_=self.input_)


def settings_of(
    model: str, data: str | None, *, precision: choices.Precision, xla: bool, input_: choices.Input
) -> Settings:
    """The settings of a request. Raises UsageError for --data with --input host, which is for random samples."""
    from gpubalance.settings.requests import Settings

    if data is not None and input_ == "host":
        raise UsageError("--input host is for random samples: --data has its own pipeline", remedy="leave it out")
    return Settings(model=model, data=data, precision=precision, xla=xla, input=input_)


@dataclass(frozen=True)
class JointTrainingOptions(TrainingOptions):
    """What is trained on several devices together."""

    all_reduce: Annotated[
        choices.AllReduce,
        training_option(
            "--all-reduce", metavar="KIND", help="How gradients are summed: auto, nccl, hierarchical or one-device."
        ),
    ] = "auto"

    def settings(self, devices: Sequence[Device]) -> Settings:
        """The settings of a request. Raises UsageError for an all-reduce that the devices can't do."""
        _refuse_what_devices_cannot(devices, self.all_reduce)
        _refuse_what_hosts_cannot(devices, self.all_reduce)
        return super().settings(devices).model_copy(update={"all_reduce": self.all_reduce})


def _refuse_what_devices_cannot(devices: Sequence[Device], all_reduce: str) -> None:
    """Raises UsageError for a joint run of MIG slices, and for NCCL without GPUs."""
    if len(devices) > 1 and any(device.uuid.startswith("MIG-") for device in devices):
        raise UsageError("CUDA shows a process one MIG slice only: there is no joint run", remedy="name one slice")
    if devices[0].simulated and all_reduce == "nccl":
        raise UsageError("--all-reduce nccl needs GPUs", remedy="use auto, hierarchical or one-device")


def _refuse_what_hosts_cannot(devices: Sequence[Device], all_reduce: str) -> None:
    """Raises UsageError for an all-reduce that works on one host only, if there are several."""
    from gpubalance.settings.device import hosts_of

    hosts = ", ".join(host for host in hosts_of(devices) if host)
    if len(hosts_of(devices)) > 1 and all_reduce not in ("auto", "nccl"):
        raise UsageError(
            f"--all-reduce {all_reduce} works on one host only, and the devices are on {hosts}",
            remedy="use auto or nccl",
        )


@dataclass(frozen=True)
class StdoutOptions:
    """How a result is printed."""

    json: Annotated[bool, output_option("--json", help="Print the result as JSON, and nothing else on stdout.")] = False
    redact: Annotated[
        bool,
        output_option(
            "--redact",
            help="Take UUIDs, bus ids, other processes, and the names of host, user and home folder out of the result.",
        ),
    ] = False


@dataclass(frozen=True)
class OutputOptions(StdoutOptions):
    """How a result is printed, and where it is written."""

    output: Annotated[
        Path | None, output_option("--output", "-o", metavar="FILE", help="Write the result as JSON.")
    ] = None
    overwrite: Annotated[bool, output_option("--overwrite", help="Replace FILE if it exists.")] = False


QuietOption = Annotated[bool, output_option("--quiet", "-q", help="No progress on stderr.")]


@dataclass(frozen=True)
class UnwatchedOptions(OutputOptions):
    """The output options of a command that writes nothing while it measures."""

    tensorboard: ClassVar[Path | None] = None
    trace: ClassVar[Path | None] = None

    quiet: QuietOption = False


@dataclass(frozen=True)
class ReportingOptions(OutputOptions):
    """The output options of a measurement, with what it writes meanwhile."""

    quiet: QuietOption = False
    tensorboard: Annotated[
        Path | None,
        output_option("--tensorboard", metavar="DIR", help="Write measurements there as they come, for TensorBoard."),
    ] = None
    trace: Annotated[
        Path | None,
        output_option(
            "--trace",
            metavar="DIR",
            help="Trace some more steps with TensorFlow's profiler at the end, and write the trace there.",
        ),
    ] = None


def _show_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        with suppress(SystemExit):  # raised by Rich if the reader of a pipe has gone
            print(ctx.get_help())
        raise typer.Exit


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take options from a TOML file, unless they are given here.",
        callback=config.take,
        is_eager=True,
    ),
]
# Typer's own shows a <bool> beside the option
HelpOption = Annotated[
    bool, typer.Option("--help", "-h", help="Show this message and exit.", callback=_show_help, is_eager=True)
]


@dataclass(frozen=True)
class CommonOptions:
    """The options of every command, which main() reads."""

    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")] = False
    config: ConfigOption = None
    help: HelpOption = False
