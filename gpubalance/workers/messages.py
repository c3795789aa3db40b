"""The messages between a worker and its parent, a line each: a record and its kind.

A line reads `{"Measure":{…}}`.

    parent                          worker
    Open (once)                →    Ready
    Measure                    →    Timing …, Measured
    Measure at_once, Stop      →    Timing …, Measured after the Stop
    Pull                       →    Prefetched …, PrefetchedAll
    CountFlops                 →    Flops
    Trace                      →    Traced
    TimeSums                   →    SumsTimed
    TimeBlocks                 →    BlockTimed …, Measured: of a model opened with `cuts`, as Pipe
    Pipe                       →    Timing …, Measured
    Survey, Inspect            →    Surveyed, Inspected: of no model, instead of Open
    Copy, Reduce               →    Copied, Reduced: likewise
    QueryProgress (of a cluster)       →    Progress, whatever else it does
    any                        →    Failed; the worker goes on, unless it was a GPU's memory

Both sides reject what they do not know: a message is data, and its text is never executed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from gpubalance.planning.pipeline.problem import Graph, Segment, Task
from gpubalance.results.combine_rules import UNTRIED, CombineRules
from gpubalance.results.common import LocalLayers, Model
from gpubalance.results.timing import BlockTimed, Prefetched, Remedy, Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.cluster import Cluster
from gpubalance.settings.device import Device, JointProfile
from gpubalance.settings.measuring import Tracing
from gpubalance.settings.record import Record, Seconds
from gpubalance.settings.settings import Settings

_Bytes = Annotated[int, Field(ge=1)]
_Block = Annotated[int, Field(ge=0, lt=10**6)]
_Count = Annotated[int, Field(ge=1, le=10**9)]
Peak = Annotated[int, Field(ge=0, lt=2**63)] | None


class Build(Record):
    """The model that a worker builds on its devices before it is asked anything.

    With `cuts` it is built in the host's memory, to be cut: no device needs to hold all of it. Its
    blocks begin at these layers; if none are named, anywhere. `combine_rules` are those that
    another worker has found for the model.
    """

    settings: Settings
    joint: JointProfile = JointProfile()
    seed: int = 0
    cuts: tuple[str, ...] | None = None
    combine_rules: CombineRules | None = None


class Open(Build):
    """Build the model on these devices.

    In a `cluster` the worker has one of them, and other processes have theirs. `code` is the
    `code_key` of the user's own code on the controller's host, for a worker on another one.
    """

    devices: tuple[Device, ...]
    cluster: Cluster | None = None
    code: str | None = None


class Ready(Record):
    """The model is built.

    `memory_limit_bytes` is what TensorFlow's allocator may take on each device, None if unknown.
    `combine_rules` are those that a split would use for the model. `graph` has the blocks of a
    model that is to be cut. `own_batch` is the number of samples in the batches of the user's
    data, and `samples` that of an epoch; None if unknown. With `own_batch_stays` these batches
    differ in shape, and `fit` leaves them as they are. `pack_bytes` is how many bytes of gradients
    several devices sum in one all-reduce, 0 for all, None for a device alone. `compiled_with` is
    the optimizer and loss of a user's model that is not compiled, None of one that is.
    """

    model: Model
    memory_limit_bytes: tuple[int | None, ...]
    combine_rules: CombineRules = UNTRIED
    graph: Graph | None = None
    own_batch: Annotated[int, Field(ge=1)] | None = None
    own_batch_stays: bool = False
    samples: Annotated[int, Field(ge=0)] | None = None
    pack_bytes: Annotated[int, Field(ge=0)] | None = None
    local_layers: LocalLayers = LocalLayers()
    compiled_with: str | None = None


class Measure(Record):
    """Train with this split for `seconds`, and at least `at_least` timings.

    A stamped timing is one step. With `at_once` other workers train meanwhile, and it goes on until
    Stop comes. With `pipeline` batches come from the user's own pipeline instead of lying on the
    devices.
    """

    split: BatchSplit
    seconds: Seconds = 0.0
    at_least: _Count = 1
    steps_per_timing: _Count = 1
    stamped: bool = False
    at_once: bool = False
    pipeline: bool = False


class Stop(Record):
    """End a measurement at once with others after its next timing, if it has not ended already."""


class Measured(Record):
    """The requested timings are over.

    `samples` is the size of the user's data, as far as it is known by then.
    """

    memory_peak_bytes: tuple[Peak, ...]
    late_part: Annotated[float, Field(ge=0, le=1)] | None
    samples: Annotated[int, Field(ge=0)] | None = None


class Pull(Record):
    """Take batches of that size from the user's data without training.

    It goes on for `seconds`, and for at least `at_least` timings.
    """

    global_batch: _Count
    seconds: Seconds
    at_least: _Count = 1


class PrefetchedAll(Record):
    """The requested batches have come. `remedies` are what usually makes such data faster.

    `joined_from` is the size of the user's own batches, which differ in shape; `split.fit` would
    leave them so.
    """

    remedies: tuple[Remedy, ...] = ()
    joined_from: Annotated[int, Field(ge=1)] | None = None


class CountFlops(Record):
    """Count the operations of a step for one sample."""


class Flops(Record):
    """Operations of a step for one sample, as TensorFlow counts them; None if it can't."""

    step: float | None


class Trace(Record):
    """Train some steps with this split under TensorFlow's profiler."""

    split: BatchSplit
    tracing: Tracing


class Traced(Record):
    """The trace is written. `missing` is why a GPU is not in it, None if all are."""

    missing: str | None


class TimeSums(Record):
    """Sum so many bytes of float32 over each of these groups of the devices, by their places."""

    groups: tuple[tuple[Annotated[int, Field(ge=0, lt=10**4)], ...], ...]
    nbytes: Annotated[int, Field(ge=1)]


class SumsTimed(Record):
    """The seconds of each group's fastest sum."""

    seconds: tuple[Seconds, ...]


class TimeBlocks(Record):
    """Time each of these blocks alone on the one device.

    Each takes `seconds`, and at least so many passes.
    """

    blocks: tuple[_Block, ...]
    micro_batch: _Count
    seconds: Seconds = 0.0
    at_least: _Count = 3


class Pipe(Record):
    """Train with these segments, each device in its order.

    It goes on for `seconds`, and for at least `at_least` timings; a stamped timing is one step. A
    task that takes longer than `patience_s` is reported as hanging.
    """

    segments: tuple[Segment, ...]
    order: tuple[tuple[Task, ...], ...]
    micro_batch: _Count
    micro_batches: _Count
    seconds: Seconds = 0.0
    at_least: _Count = 1
    steps_per_timing: _Count = 1
    stamped: bool = False
    patience_s: Annotated[float, Field(gt=0)] | None = None


class QueryProgress(Record):
    """Say where the process is.

    The processes of a cluster are asked this when they have been silent for too long.
    """


class Progress(Record):
    """How many steps have this process's own gradients."""

    computed: int


class Failed(Record):
    """The request failed. `replica` is the place of the device at fault, if it is one device's.

    Input is "refused" if it was checked and found wrong; otherwise training failed, perhaps because
    of it. A "peer" is another worker of a cluster, whose failure TensorFlow reported here. A "bug"
    is gpubalance's own.

    Memory is `disguised` if the message may tell of another fault too: then it is one of memory if
    a smaller batch trains. Out of memory, `memory_peak_bytes` is what each device held or, as a
    simulated one knows, would have needed. `doing` is what a pipeline's device was doing when it
    failed or, with the fault "hang", has been doing for too long.
    """

    fault: Literal["memory", "refused", "input", "environment", "peer", "hang", "bug"]
    message: str
    cause: str = ""
    remedy: str = ""
    replica: int | None = None
    memory_peak_bytes: tuple[int | None, ...] = ()
    disguised: bool = False
    doing: str = ""


class Survey(Record):
    """Find out which of these GPUs TensorFlow has."""

    devices: tuple[Device, ...]


class Surveyed(Record):
    """UUIDs of the GPUs that TensorFlow can't use, each with the reason if TensorFlow gives one.

    `memory_growth`: whether each GPU that it has takes memory as needed; null if it has none.
    """

    missing: dict[str, str]
    memory_growth: bool | None = None


class Inspect(Record):
    """Find out what is installed, without touching a device."""


class Inspected(Record):
    """What TensorFlow's build needs, and why each CUDA library can't be loaded, None if it can.

    `capabilities` are the build's: `sm_60` is code, `compute_90` is compiled by a newer GPU's
    driver. `cudnn` is the version it is built for, `cudnn_loaded` that of the loaded library, which
    is `cudnn_file`.
    """

    tensorflow: str
    keras: str
    cuda: str | None
    cudnn: str | None
    capabilities: tuple[str, ...]
    libraries: dict[str, str | None]
    cudnn_loaded: str | None
    cudnn_file: str | None = None


class Copy(Record):
    """Copy random data from one of the devices to another, and compare it there."""

    devices: tuple[Device, ...]
    source: int
    target: int
    nbytes: _Bytes


class Copied(Record):
    """How many of the `elements` arrived changed, and how many of those as zeros.

    `seconds` is the fastest copy's.
    """

    elements: int
    differing: int
    zeros: int
    seconds: float


class Reduce(Record):
    """Sum random data over the devices, as gradients are, and compare the sum on each."""

    devices: tuple[Device, ...]
    nbytes: _Bytes


class Reduced(Record):
    """How many elements of the sum are wrong on each device; `seconds` of the fastest sum."""

    differing: tuple[int, ...]
    seconds: float


Check = Survey | Inspect | Copy | Reduce
AnyRequest = (
    Open
    | Measure
    | Stop
    | Pull
    | CountFlops
    | Trace
    | TimeSums
    | TimeBlocks
    | Pipe
    | Check
)

_OfMeasuring = Timing | Measured | Prefetched | PrefetchedAll | BlockTimed
_OfChecks = Surveyed | Inspected | Copied | Reduced
AnyReply = (
    Ready | _OfMeasuring | Flops | Traced | SumsTimed | _OfChecks | Progress | Failed
)


def to_line(message: Record) -> bytes:
    """A message's line, without its end."""
    return f'{{"{type(message).__name__}":{message.model_dump_json()}}}'.encode()


def from_line(line: bytes, kinds: Any) -> Any:
    """The message, of one of these `kinds`: a record or a union of them.

    Raises ValueError for any other line.
    """
    by_name = {kind.__name__: kind for kind in get_args(kinds) or (kinds,)}
    try:
        ((name, fields),) = json.loads(line).items()
        return by_name[name].model_validate(fields)
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no message: {error}") from None
