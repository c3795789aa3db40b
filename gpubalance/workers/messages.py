"""What a worker and its parent say to each other: one JSON object a line, each one of these records.

    parent                          worker
    Open (once)                →    Ready
    Measure                    →    Timing …, Measured
    Measure at_once, Stop      →    Timing …, Measured after the Stop
    Pull                       →    Pulled …, PulledAll
    CountFlops                 →    Flops
    Trace                      →    Traced
    Describe                   →    Described: this and the next two are of a model that is opened with `layers`
    TimeBlocks                 →    BlockTimed …, BlocksTimed
    Pipe                       →    Timing … or Piped …, Measured
    Survey (instead of Open)   →    Surveyed
    Inspect, Copy, Reduce      →    Inspected, Copied, Reduced: the checks of `doctor`, instead of Open too
    Where (of a cluster)       →    Whereabouts, whatever else it does
    any                        →    Failed; the worker takes more requests, unless it was a GPU's memory

Both sides refuse what they do not know: a message is data, and its text is never executed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from gpubalance.results.common import Model
from gpubalance.results.piped import BlockTimed, Piped
from gpubalance.results.pulled import Change, Mend, Pulled
from gpubalance.results.timing import Timing
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.record import Record, Seconds
from gpubalance.settings.requests import Settings, Tracing
from gpubalance.settings.shares import Shares
from gpubalance.workers.layers_messages import BlocksTimed, Describe, Described, Pipe, TimeBlocks

Peak = Annotated[int, Field(ge=0, lt=2**63)] | None


class Open(Record):
    """Build the model on these devices. In a `cluster` the worker has one of them, and others have theirs.

    Of GPUs a worker of a cluster is told its own alone.

    `code` is the content of the user's own code on the controller's host, for a worker on another one: see `code_key`.
    With `layers` it is built in the host's memory, to be cut: no device has to hold it.
    """

    kind: Literal["open"] = "open"
    devices: tuple[Device, ...]
    settings: Settings
    joint: JointProfile
    seed: int
    cluster: Cluster | None = None
    code: str | None = None
    layers: bool = False


class Measure(Record):
    """Train with this split for `seconds`, and at least `at_least` timings. A stamped timing is one step.

    `at_once`: other workers train meanwhile, and it goes on until Stop comes.
    With `pipeline` batches come from the user's own pipeline instead of lying on the devices.
    """

    kind: Literal["measure"] = "measure"
    split: Shares
    seconds: Seconds
    at_least: Annotated[int, Field(ge=1)]
    steps_per_timing: Annotated[int, Field(ge=1)] = 1
    stamped: bool = False
    at_once: bool = False
    pipeline: bool = False


class Stop(Record):
    """End what is measured at once with others, after its next timing. Nothing, where that has ended by itself."""

    kind: Literal["stop"] = "stop"


class Pull(Record):
    """Take batches of that size from the user's data, and do nothing with them, for `seconds` and `at_least` timings.

    With `change` the dataset is changed so, to see whether that makes it faster.
    """

    kind: Literal["pull"] = "pull"
    global_batch: Annotated[int, Field(ge=1)]
    seconds: Seconds
    at_least: Annotated[int, Field(ge=1)]
    change: Change | None = None


class CountFlops(Record):
    """How much work is a sample?"""

    kind: Literal["count-flops"] = "count-flops"


class Trace(Record):
    """Train some steps with this split under TensorFlow's profiler."""

    kind: Literal["trace"] = "trace"
    split: Shares
    tracing: Tracing


class Survey(Record):
    """Which of these GPUs does TensorFlow have?"""

    kind: Literal["survey"] = "survey"
    devices: tuple[Device, ...]


class Ready(Record):
    """The model is built. CUDA's and cuDNN's versions are those that TensorFlow was built for.

    `import_s` is how long importing a user's own file took.
    `memory_limit_bytes` is what TensorFlow's allocator may take of each device, None where that is not known.
    """

    kind: Literal["ready"] = "ready"
    model: Model
    import_s: Seconds = 0.0
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    memory_limit_bytes: tuple[int | None, ...]


class Measured(Record):
    """The timings asked for are over. `samples`: the user's data has so many, by what is known of it until then."""

    kind: Literal["measured"] = "measured"
    memory_peak_bytes: tuple[Peak, ...]
    late_part: Annotated[float, Field(ge=0, le=1)] | None
    samples: Annotated[int, Field(ge=0)] | None = None


class PulledAll(Record):
    """The batches asked for have come. `mends` can be tried.

    `joined_from`: the user's own have so many samples; they differ in shape, and `split.fit` would leave them so.
    """

    kind: Literal["pulled-all"] = "pulled-all"
    mends: tuple[Mend, ...] = ()
    joined_from: Annotated[int, Field(ge=1)] | None = None


class Flops(Record):
    """Operations of one sample's forward pass, as TensorFlow counts them; None where it can't."""

    kind: Literal["flops"] = "flops"
    forward: float | None


class Traced(Record):
    """The trace is written. `missing`: why not every GPU is in it, None where each is."""

    kind: Literal["traced"] = "traced"
    missing: str | None


class Surveyed(Record):
    """UUIDs of the GPUs that TensorFlow can't use, and why where it says.

    `memory_growth`: whether each GPU that it has takes memory as it needs it; null where it has none.
    """

    kind: Literal["surveyed"] = "surveyed"
    missing: dict[str, str]
    memory_growth: bool | None = None


class Inspect(Record):
    """What is installed? No device is touched."""

    kind: Literal["inspect"] = "inspect"


class Inspected(Record):
    """What TensorFlow's build wants, and of each CUDA library why it can't be loaded, None where it can.

    `capabilities` are the build's: `sm_60` is code, `compute_90` what a newer GPU's driver compiles. `cudnn` is the
    version it is built for, `cudnn_loaded` that of the library that was loaded.
    """

    kind: Literal["inspected"] = "inspected"
    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    capabilities: tuple[str, ...]
    libraries: dict[str, str | None]
    cudnn_loaded: str | None


class Copy(Record):
    """Copy random data from one of the devices to another, and compare it there."""

    kind: Literal["copy"] = "copy"
    devices: tuple[Device, ...]
    source: int
    target: int
    nbytes: Annotated[int, Field(ge=1)]


class Copied(Record):
    """How many of the `elements` arrived changed, and how many of those as zeros. Seconds of the fastest copy."""

    kind: Literal["copied"] = "copied"
    elements: int
    differing: int
    zeros: int
    seconds: float


class Reduce(Record):
    """Sum random data over the devices, as gradients are, and compare the sum on each."""

    kind: Literal["reduce"] = "reduce"
    devices: tuple[Device, ...]
    nbytes: Annotated[int, Field(ge=1)]


class Reduced(Record):
    """How many elements of the sum are wrong on each device. Seconds of the fastest all-reduce."""

    kind: Literal["reduced"] = "reduced"
    differing: tuple[int, ...]
    seconds: float


class Where(Record):
    """Where is it? Asked of the processes of a cluster when they have been silent for too long."""

    kind: Literal["where"] = "where"


class Whereabouts(Record):
    """So many steps have this process's own gradients, and so many the sum of all.

    `at` is what its program does, where it does not wait in TensorFlow: no other process makes it do that.
    """

    kind: Literal["whereabouts"] = "whereabouts"
    computed: int
    summed: int
    at: str


class Failed(Record):
    """It can't be done. `replica` is the place of the device at fault, where it is one device's fault.

    Input is "refused" where it was looked at; else training has failed, which may have been its fault. A "peer" is
    another worker of a cluster, of which TensorFlow told here.

    Out of memory, `memory_peak_bytes` is what each device held or, as a simulated one knows, would have needed.
    `doing` is what a pipeline's device was at when it failed, or, with the fault "hang", has been at for too long.
    """

    kind: Literal["failed"] = "failed"
    fault: Literal["memory", "refused", "input", "environment", "peer", "hang"]
    message: str
    cause: str = ""
    remedy: str = ""
    replica: int | None = None
    memory_peak_bytes: tuple[int | None, ...] = ()
    doing: str = ""


AnyRequest = (
    Open | Measure | Stop | Pull | CountFlops | Trace | Describe | TimeBlocks | Pipe | Survey | Inspect | Copy | Reduce
)
Request = Annotated[AnyRequest, Field(discriminator="kind")]
_OfLayers = Described | BlockTimed | BlocksTimed | Piped
_OfChecks = Surveyed | Inspected | Copied | Reduced | Whereabouts
AnyReply = Ready | Timing | Measured | Pulled | PulledAll | Flops | Traced | _OfLayers | _OfChecks | Failed
Reply = Annotated[AnyReply, Field(discriminator="kind")]

# Of each, one process reads and the other writes.
REQUEST: TypeAdapter[AnyRequest] = TypeAdapter(Request, config=ConfigDict(defer_build=True))
REPLY: TypeAdapter[AnyReply] = TypeAdapter(Reply, config=ConfigDict(defer_build=True))
