"""The options that several commands take, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubalance.cli import complete
from gpubalance.settings import choices

_DEVICES, _TRAINING, _OUTPUT, _SPLIT = "Devices", "Training", "Output", "Split"

Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpus",
        metavar="N…",
        help="The devices, by index, UUID or bus id: --gpus 0 1. Default: all.",
        autocompletion=complete.devices,
        rich_help_panel=_DEVICES,
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="FILE|N",
        help="Simulated devices instead of GPUs: a profile (see configs/), or N plain CPU devices.",
        autocompletion=complete.profiles,
        rich_help_panel=_DEVICES,
    ),
]


def _readable(model: str | None) -> str | None:
    """A result's JSON must be able to hold it."""
    try:
        (model or "").encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("its name is not UTF-8: give the file or module another") from None
    return model


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="probe, small, a keras.applications name, package.module:function, file.py:function or saved.keras. "
        "Default: probe on GPUs, small on simulated devices.",
        autocompletion=complete.models,
        callback=_readable,
        rich_help_panel=_TRAINING,
    ),
]
Precision = Annotated[
    choices.Precision,
    typer.Option(
        "--precision", metavar="KIND", help="float32, tf32, mixed_float16 or mixed_bfloat16.", rich_help_panel=_TRAINING
    ),
]
Xla = Annotated[
    bool, typer.Option("--xla/--no-xla", help="Compile the forward and backward pass.", rich_help_panel=_TRAINING)
]
Input = Annotated[
    choices.Input,
    typer.Option(
        "--input",
        metavar="PLACE",
        help="Samples lie on the device, or behind a pipeline on the host.",
        rich_help_panel=_TRAINING,
    ),
]
AllReduce = Annotated[
    choices.AllReduce,
    typer.Option(
        "--all-reduce",
        metavar="KIND",
        help="auto, nccl, hierarchical or one-device: how gradients are summed.",
        rich_help_panel=_TRAINING,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="N", min=0, max=2**31 - 1, help="Of samples, weights and noise.", rich_help_panel="Measuring"
    ),
]
Windows = Annotated[
    int,
    typer.Option(
        "--windows",
        metavar="N",
        min=1,
        max=10_000,
        help="How often to measure; more often, up to 5/3 of it, while the result is not within ±1 %.",
        rich_help_panel="Measuring",
    ),
]
Duration = Annotated[
    float, typer.Option("--duration", metavar="S", help="Seconds a window takes.", rich_help_panel="Measuring")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="S",
        help="End after that many seconds, with what is measured.",
        rich_help_panel="Measuring",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        metavar="S",
        help="The longest silence of a child, which is then ended. Default: 30 times what such steps took, at least "
        "60 s, and 900 s for a first step.",
        rich_help_panel="Measuring",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with an interrupted one of the same devices and settings.",
        rich_help_panel="Measuring",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a GPU that another process uses, rather than warn of it.",
        rich_help_panel="Measuring",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else on stdout.", rich_help_panel=_OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the result as JSON.", rich_help_panel=_OUTPUT),
]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact",
        help="Take UUIDs, bus ids, other processes, and the names of host, user and home folder out of the result.",
        rich_help_panel=_OUTPUT,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.", rich_help_panel=_OUTPUT)]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Write what is measured there, as it comes, for TensorBoard.",
        rich_help_panel=_OUTPUT,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="DIR",
        help="Then trace some more steps with TensorFlow's profiler, and write that there.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.", rich_help_panel=_OUTPUT)]
Verbose = Annotated[bool, typer.Option("--verbose", help="With an error, its whole story.", rich_help_panel=_OUTPUT)]

GlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--global-batch",
        metavar="B",
        min=1,
        max=10**9,
        help="Samples of all devices in one step, exactly. Default: what gives the most samples per second.",
        rich_help_panel=_SPLIT,
    ),
]
MaxGlobalBatch = Annotated[
    int | None,
    typer.Option(
        "--max-global-batch", metavar="B", min=1, max=10**9, help="No more than that.", rich_help_panel=_SPLIT
    ),
]
Accumulate = Annotated[
    str,
    typer.Option(
        "--accumulate",
        metavar="auto|off|N",
        help="How many micro-batches a device's batch may be done in, where its memory is too small for it.",
        autocompletion=complete.accumulate,
        rich_help_panel=_SPLIT,
    ),
]
PlannedMultiple = Annotated[
    int | None,
    typer.Option(
        "--batch-multiple",
        metavar="N",
        min=1,
        max=10**6,
        help="Batches are multiples of this. Default: as the probe's.",
        rich_help_panel=_SPLIT,
    ),
]
JointMargin = Annotated[
    str,
    typer.Option(
        "--margin",
        metavar="SIZE",
        help="Memory of each device to keep free, beside what a joint run takes, such as 512MiB.",
        rich_help_panel=_SPLIT,
    ),
]
FromBatch = Annotated[
    int | None,
    typer.Option(
        "--from-batch",
        metavar="B",
        min=1,
        max=10**9,
        help="The global batch that your learning rate suits. Default: the best of the best single device.",
        rich_help_panel=_SPLIT,
    ),
]
