"""What a child process and its parent say to each other: one JSON object a line, each one of these records.

    parent                          child
    Open (once)                →    Ready
    Measure                    →    Sample …, Measured
    CountFlops                 →    Flops
    Survey (instead of Open)   →    Surveyed
    any                        →    Failed; after one the child may be asked on, unless it was a GPU's memory

Both sides refuse what they do not know: a message is data, and its text is never executed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from gpubalance.config import Batch, Device, JointProfile, Record, Seconds, Settings


class Open(Record):
    """Build the model on these devices."""

    kind: Literal["open"] = "open"
    devices: tuple[Device, ...]
    settings: Settings
    joint: JointProfile
    seed: int


class Measure(Record):
    """Train with this split for `seconds`, and at least `at_least` samples. A stamped sample is one step.

    Of each batch, as many samples at a time as `micro_batches` says; null: all.
    """

    kind: Literal["measure"] = "measure"
    batches: tuple[Batch, ...]
    micro_batches: tuple[Batch, ...] | None = None
    seconds: Seconds
    at_least: Annotated[int, Field(ge=1)]
    steps_per_sample: Annotated[int, Field(ge=1)] = 1
    stamped: bool = False


class CountFlops(Record):
    """How much work is a sample?"""

    kind: Literal["count-flops"] = "count-flops"


class Survey(Record):
    """Which of these GPUs does TensorFlow have?"""

    kind: Literal["survey"] = "survey"
    devices: tuple[Device, ...]


class Ready(Record):
    """The model is built. CUDA's and cuDNN's versions are those that TensorFlow was built for.

    `memory_limit_bytes` is what TensorFlow's allocator may take of each device, None where that is not known.
    """

    kind: Literal["ready"] = "ready"
    model: str
    parameters: int
    gradient_bytes: int
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    memory_limit_bytes: tuple[int | None, ...]


class Sample(Record):
    """Some consecutive steps timed as one; of a stamped one, which is one step, each replica's compute time.

    `ended_s` is on the system's monotonic clock, which all processes share.
    """

    kind: Literal["sample"] = "sample"
    steps: int
    seconds: float
    ended_s: float
    input_wait_s: float
    compute_s: tuple[float, ...] | None = None
    step_s: float | None = None
    loss_is_finite: bool = True


class Measured(Record):
    """The samples asked for are over."""

    kind: Literal["measured"] = "measured"
    memory_peak_bytes: tuple[int | None, ...]
    late_part: float | None


class Flops(Record):
    """Operations of one sample's forward pass, as TensorFlow counts them; None where it can't."""

    kind: Literal["flops"] = "flops"
    forward: float | None


class Surveyed(Record):
    """UUIDs of the GPUs that TensorFlow can't use, and why where it says."""

    kind: Literal["surveyed"] = "surveyed"
    missing: dict[str, str]


class Failed(Record):
    """It can't be done. `replica` is the device's place in the run, where it is one device's fault.

    Out of memory, `memory_peak_bytes` is what each device held or, as a simulated one knows, would have needed.
    """

    kind: Literal["failed"] = "failed"
    fault: Literal["memory", "input", "environment", "step"]
    message: str
    remedy: str = ""
    replica: int | None = None
    memory_peak_bytes: tuple[int | None, ...] = ()


Request = Annotated[Open | Measure | CountFlops | Survey, Field(discriminator="kind")]
AnyReply = Ready | Sample | Measured | Flops | Surveyed | Failed
Reply = Annotated[AnyReply, Field(discriminator="kind")]

REQUEST: TypeAdapter[Open | Measure | CountFlops | Survey] = TypeAdapter(Request)
REPLY: TypeAdapter[AnyReply] = TypeAdapter(Reply)
