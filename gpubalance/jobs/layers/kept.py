"""What `layers` leaves in a journal as it goes: what blocks take, the cuts that were tried, and what proves one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import Field

from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.kept import delays_s, later
from gpubalance.planning.pipeline.graph import Graph
from gpubalance.planning.pipeline.simulate import Timeline
from gpubalance.results.layers import SplitBaseline
from gpubalance.results.timing import Duration, Timing
from gpubalance.settings.device import Device
from gpubalance.settings.record import Record, Seconds
from gpubalance.workers.messages import Ready

_ALL = "layers"  # what stands in a journal for all devices together
_Bytes = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[int, Field(ge=0, le=10**6)]


class BlockPoint(Record):
    """What one block takes on a device for a micro-batch: seconds, and bytes as far as an allocator tells.

    `held_bytes` are kept of each micro-batch in flight, `working_bytes` are taken for a moment beside that.
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
    """All that was measured of a device (its UUID) alone. `limit_bytes` is what its allocator may take."""

    device: str
    graph: Graph
    limit_bytes: _Bytes | None
    points: tuple[BlockPoint, ...]


class PipeWindow(Record):
    """Timings of a cut, its stamped steps, and what else its devices told meanwhile: see Series."""

    timings: Annotated[tuple[Timing, ...], Field(min_length=1)]
    timelines: Annotated[tuple[Timeline, ...], Field(min_length=1)]
    memory_peak_bytes: tuple[_Bytes | None, ...]
    throttled: tuple[tuple[str, ...], ...]
    late_part: Annotated[float, Field(ge=0, le=1)]


class KeptCut(Record):
    """A cut that was tried: [first block, last block, device] of each segment, and micro-batches in flight.

    `window` is null where it ran out of memory, on the device `ran_out`.
    """

    micro_batch: Annotated[int, Field(ge=1, le=10**6)]
    segments: tuple[tuple[_Number, _Number, _Number], ...]
    in_flight: tuple[_Number, ...]
    window: PipeWindow | None = None
    ran_out: _Number | None = None


class KeptWindow(Record):
    """A window of the proof of a cut, which has none here."""

    cut: KeptCut
    window: PipeWindow


class KeptLayers:
    """The journal of a cut model; without a journal nothing is kept. Gives each cut that was left once."""

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
        # What the devices' worker told of the model, and the other things that a result has beside measurements.
        self.facts = next(iter(journal.of(_ALL, Ready)), None) if journal else None
        self.taken_over = 0

    def blocks_of(self, device: Device) -> KeptBlocks | None:
        """What was left of a device's blocks."""
        return next((one for one in self._blocks if one.device == device.uuid), None)

    def blocks(self, measured: KeptBlocks) -> None:
        """Keeps a device's."""
        self._keep(measured)

    def cut_like(self, wanted: KeptCut) -> KeptCut | None:
        """What was left of the same cut."""

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
        """What was left of its proof, as if it had ended now."""
        found = [one.window for one in self._windows if one.cut == cut]
        delays = delays_s([one.timings for one in found])
        return [
            one.model_copy(update={"timings": later(one.timings, delay_s)})
            for one, delay_s in zip(found, delays, strict=True)
        ]

    def window(self, cut: KeptCut, measured: PipeWindow) -> None:
        """Keeps a window of its proof."""
        self._keep(KeptWindow(cut=cut, window=measured))

    def learn(self, facts: Ready) -> None:
        """Keeps them, once."""
        if self.facts is None:
            self.facts = facts
            self._keep(facts)

    def split_like(self, planned: SplitBaseline) -> SplitBaseline | None:
        """What was measured of the same batch split."""
        return next((one for one in self._splits if one.split == planned.split), None)

    def split(self, measured: SplitBaseline) -> None:
        """Keeps what it gave."""
        self._keep(measured)
