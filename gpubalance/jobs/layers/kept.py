"""What `layers` writes to a journal as it goes: what blocks take, the cuts that were tried, and a proof's windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import Field

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.once import ending_now
from gpubalance.jobs.measure.window import Window
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.simulate import Timeline
from gpubalance.results.layers import SplitBaseline
from gpubalance.results.timing import Duration
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import Ready

_ALL = "layers"  # a journal's device name for all devices together
_Bytes = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[int, Field(ge=0, le=10**6)]


class BlockPoint(Record):
    """What one block takes on a device for a micro-batch: seconds, and bytes if the allocator reports them.

    `held_bytes` stay for each micro-batch in flight, `working_bytes` are taken for a moment beside them.
    """

    block: _Number
    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    forward_s: Duration
    backward_s: Duration
    update_s: Seconds
    fixed_bytes: _Bytes
    held_bytes: _Bytes | None
    working_bytes: _Bytes | None


class KeptBlocks(Record):
    """All that was measured on a device (its UUID) alone. `limit_bytes` is what its allocator may take."""

    device: str
    graph: Graph
    limit_bytes: _Bytes | None
    points: tuple[BlockPoint, ...]


class PipeWindow(Window):
    """A window of a cut: its stamped steps are timelines."""

    timelines: Annotated[tuple[Timeline, ...], Field(min_length=1)]


class KeptCut(Record):
    """A cut that was tried: [first block, last block, device] of each segment, and micro-batches in flight.

    `window` is null if it ran out of memory, on the device `ran_out`.
    """

    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    segments: tuple[tuple[_Number, _Number, _Number], ...]
    in_flight: tuple[_Number, ...]
    window: PipeWindow | None = None
    ran_out: _Number | None = None


class KeptWindow(Record):
    """A window of a cut's proof; `cut` itself has none here."""

    cut: KeptCut
    window: PipeWindow


class KeptLayers:
    """What the journal of a cut model has, each cut handed out once; without a journal nothing is kept."""

    def __init__(self, journal: Journal | None, watch: Watch) -> None:
        self._keep: Callable[[Record], None] = lambda _: None
        self.cannot_help: Callable[[], None] = lambda: None
        if journal is not None:
            journal.tell = lambda text: watch(Doing(text))
            self._keep = partial(journal.add, _ALL)
            self.cannot_help = journal.cannot_help
        self._blocks = journal.of(_ALL, KeptBlocks) if journal else []
        self._cuts = journal.of(_ALL, KeptCut) if journal else []
        self._windows = journal.of(_ALL, KeptWindow) if journal else []
        self._splits = journal.of(_ALL, SplitBaseline) if journal else []
        # What the worker reported of the model and the software, which a result needs beside measurements.
        self.facts = next(iter(journal.of(_ALL, Ready)), None) if journal else None
        self.taken_over = 0

    def blocks_of(self, device: Device) -> KeptBlocks | None:
        """A device's blocks that were left, or None."""
        return next((one for one in self._blocks if one.device == device.uuid), None)

    def blocks(self, measured: KeptBlocks) -> None:
        """Keeps a device's blocks."""
        self._keep(measured)

    def cut_like(self, wanted: KeptCut) -> KeptCut | None:
        """The same cut that was left, or None."""

        def place(one: KeptCut) -> object:
            return one.micro_batch, one.segments, one.in_flight

        left = next((one for one in self._cuts if place(one) == place(wanted)), None)
        if left is not None:
            self._cuts.remove(left)
            self.taken_over += 1
        return left

    def cut(self, tried: KeptCut) -> None:
        """Keeps a cut that was tried."""
        self._keep(tried)

    def windows_of(self, cut: KeptCut) -> list[PipeWindow]:
        """The windows left of a cut's proof, shifted to end now."""
        return ending_now([one.window for one in self._windows if one.cut == cut])

    def window(self, cut: KeptCut, measured: PipeWindow) -> None:
        """Keeps a window of a cut's proof."""
        self._keep(KeptWindow(cut=cut, window=measured))

    def learn(self, facts: Ready) -> None:
        """Keeps the facts, once."""
        if self.facts is None:
            self.facts = facts
            self._keep(facts)

    def split_like(self, planned: SplitBaseline) -> SplitBaseline | None:
        """The same batch split with its measured throughput that was left, or None."""
        return next((one for one in self._splits if one.split == planned.split), None)

    def split(self, measured: SplitBaseline) -> None:
        """Keeps a measured batch split."""
        self._keep(measured)
