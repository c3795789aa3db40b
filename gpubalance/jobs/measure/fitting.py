"""Finds by trying what fits into the devices' memory in a joint run."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import GpubalanceError, NothingFits, OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.probes import probe_of
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.memory import Points, predict_limit
from gpubalance.planning.search import TriedBatch, find_limit
from gpubalance.settings.device import Device
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.workers.messages import Measured
from gpubalance.workers.party import Party

# On a real device every failed try costs a worker and TensorFlow's own retries: 10 s and more.
_TOLERANCE_ON_GPU = 0.01


Sizes = tuple[int, ...]
Peaks = tuple[int | None, ...]


class Fitting:
    """The search for a split that fits, with the party of a run whose own split ran out
    of memory.
    """

    def __init__(self, party: Party, request: RunRequest, watch: Watch, peaks: Peaks = ()) -> None:
        """`peaks` has the bytes that the request's split takes on each device, if that is known."""
        self._party = party
        self._split = request.split
        self._settings = request.settings
        self._devices = request.devices
        self._watch = watch
        self._known = self._lines(self._split.micro_batches, peaks or (None,) * len(self._devices))
        self._refused: OutOfMemory | None = None  # the latest error in the search

    def suggest(self, failed: OutOfMemory, *, believed: bool = False) -> Shares | None:
        """A split that was tried and fits, or None. What it has less of is what a device was given
        too much of.

        Only what does not fit is lowered: halved until it does, then raised to what lines through
        memory predict, or nine tenths of that. TensorFlow may blame another device than the full
        one: then all are lowered. Each device keeps its number of micro-batches, as memory depends
        on their size.

        If these lines say that all of the request's split fits, it is tried once more, unless the
        failure is `believed`: another program may have had the memory for a moment.
        """
        wanted = self._split.micro_batches
        if failed.fault is not None and not self._trains_at_all():
            return None
        lowered = self._lowered(failed, blamed=True) or self._lowered(failed, blamed=False)
        if lowered is None:
            return None
        sizes, peaks, halved = lowered
        each = zip(wanted, self._limits(self._points(self._with(sizes), peaks)), sizes, strict=True)
        most = [min(size, limit) if limit else fits for size, limit, fits in each]
        suspected = [i for i in sorted(halved) if most[i] < wanted[i]] or sorted(halved)
        for part in (1.0, 0.9, 0.0):
            raised = {i: max(sizes[i], int(part * most[i])) for i in suspected}
            larger = tuple(raised.get(i, size) for i, size in enumerate(wanted))
            is_new = larger != sizes and not (believed and larger == wanted)
            if is_new and self._tried(self._with(larger)) is not None:
                return self._with(larger)
        return self._with(sizes)

    def _trains_at_all(self) -> bool:
        """Whether the fewest samples train: else what looks like a lack of memory is
        another fault.
        """
        return self._tried(self._with((1,) * len(self._split.batches))) is not None

    def _lowered(
        self, failed: OutOfMemory, *, blamed: bool
    ) -> tuple[Sizes, Peaks, set[int]] | None:
        """Micro-batches that fit, after halving those that errors blame, or all; their peaks; and
        which were halved.
        """
        sizes, halved, error = self._split.micro_batches, set[int](), failed
        while True:
            lower = range(len(sizes)) if error.replica is None or not blamed else (error.replica,)
            if all(sizes[i] == 1 for i in lower):
                return None
            halved |= set(lower)
            sizes = tuple(_half(size) if i in lower else size for i, size in enumerate(sizes))
            peaks = self._tried(self._with(sizes))
            if peaks is not None:
                return sizes, peaks, halved
            error = self._refused or error

    def _with(self, sizes: Sizes) -> Shares:
        """The split with micro-batches of these sizes, at most as many for each device
        as it has.
        """
        most = zip(self._split.batches, sizes, self._split.counts, strict=True)
        return Shares(tuple(min(batch, size * count) for batch, size, count in most), sizes)

    def too_small_for(self, split: Shares) -> str | None:
        """The label of the device that surely does not hold its part, by the memory that is known;
        None for none.
        """
        each = zip(self._devices, self._limits(self._known), split.micro_batches, strict=True)
        short = {
            limit / size: device.label for device, limit, size in each if limit and limit < size
        }
        return short[min(short)] if short else None

    def _lines(self, sizes: Sizes, peaks: Peaks) -> list[Points]:
        """Each device's memory at two sizes: by the peaks of these, which fit, and as it grows with
        the batch.

        A profile says how, or a probe that was made here. Empty for a device of which either is
        unknown.
        """
        grows, small = map(self._bytes_per_sample, self._devices), sorted({1, min(sizes)})
        return [
            [(batch, round(peak - per_sample * (size - batch))) for batch in small]
            if peak and per_sample
            else []
            for size, peak, per_sample in zip(sizes, peaks, grows, strict=True)
        ]

    def _bytes_per_sample(self, device: Device) -> float | None:
        if device.profile is not None:
            return device.profile.memory_per_sample
        found = probe_of(device, self._settings)
        seen = (
            [(p.batch, p.memory_peak_bytes) for p in found.curve if p.memory_peak_bytes]
            if found
            else []
        )
        if len(seen) < 2:
            return None
        (small, low), (large, high) = sorted(seen)[-2:]
        return (high - low) / (large - small)

    def largest_even_share(self, share: int) -> int:
        """The largest equal share up to `share` that fits on every device, given that the request's
        sizes do.
        """
        count, low = len(self._devices), min(self._split.micro_batches)
        refused, equal = (
            self.too_small_for(Shares((share,) * count)) is None,
            Shares((low,) * count),
        )
        points = self._known
        if not all(points):
            points = self._points(equal, self._tried(equal) or (None,) * count)
        limits = {replica: most for replica, most in enumerate(self._limits(points)) if most}
        tightest = min(limits, key=lambda replica: limits[replica], default=0)

        def attempt(batch: int, _: str) -> TriedBatch:
            peaks = self._tried(Shares((batch,) * count))
            return TriedBatch(batch, peaks is not None, peaks[tightest] if peaks else None)

        exact = all(device.simulated for device in self._devices)
        step = 1 if exact else max(1, int(_TOLERANCE_ON_GPU * low))
        fails = -(-share // step) * step
        found = find_limit(
            attempt,
            points[tightest] if limits else [(low, 0)],
            memory_bytes=self._devices[tightest].memory_bytes if limits else None,
            max_batch=fails,
            multiple=step,
            failed=fails if refused else None,
        )
        return min(share, max(low, found.fits or 0))

    def error(self, error: OutOfMemory) -> GpubalanceError:
        """The error of a run whose split does not fit; it names a split that was tried and does, if
        there is one.
        """
        self._watch(Doing(f"{error.message}; looking for what fits"))
        fitting, devices, split = self.suggest(error), self._devices, self._split
        if fitting is None and error.fault is not None:
            error.fault.partial = error.partial
            return error.fault
        word = "micro-batch" if split.accumulates else "batch"
        full = [] if error.replica is None else [error.replica]
        if fitting is not None:
            full = [
                i for i, size in enumerate(fitting.micro_batches) if size < split.micro_batches[i]
            ]
        places = [
            f"{devices[i].label} ({devices[i].name}) at {word} {split.micro_batches[i]}"
            for i in full
        ]
        where = "the joint run" if len(devices) > 1 else "the run"
        message = f"out of memory: {' and '.join(places) or 'a device'} in {where} of {split}"
        remedy = "not even one sample a device fits: use a smaller model"
        if fitting == split:
            remedy = (
                "it fits on a second try: run it again, and see what else uses the devices' memory"
            )
        elif fitting is None:
            message += _needs_and_has(
                self._refused or error, devices, self._party.facts.memory_limit_bytes
            )
        else:
            remedy = f"this fits, tried: {fitting.options}"
        return NothingFits(message, remedy=remedy, log=error.log, partial=error.partial)

    def _points(self, split: Shares, peaks: Peaks) -> list[Points]:
        """Each device's memory at two sizes: as `_lines` has it, else at this split, with these
        peaks, and half.
        """
        lines, sizes = self._lines(split.micro_batches, peaks), split.micro_batches
        if all(lines):
            return lines
        halves = tuple(map(_half, sizes))
        half = Shares(
            tuple(size * count for size, count in zip(halves, split.counts, strict=True)), halves
        )
        each = zip(halves, self._tried(half) or peaks, sizes, peaks, strict=True)
        return [
            [(small, low), (size, peak)] if low and peak else [] for small, low, size, peak in each
        ]

    def _limits(self, points: Sequence[Points]) -> list[int | None]:
        """Each device's largest micro-batch in this run, by a line; None if its memory or its use
        is unknown.
        """
        memory = [device.memory_bytes for device in self._devices]
        each = zip(points, memory, strict=True)
        return [predict_limit(own, most) if len(own) > 1 and most else None for own, most in each]

    def _tried(self, split: Shares) -> Peaks | None:
        """Trains one step: each device's peak memory, or None if one of them ran out."""
        self._watch(Doing(f"trying {split}"))
        try:
            *_, last = self._party.ask(lambda worker: list(worker.measure(split)))
        except OutOfMemory as error:
            self._refused = error
            return None
        return last.memory_peak_bytes if isinstance(last, Measured) else None


def _half(size: int) -> int:
    return max(1, size // 2)


def _needs_and_has(
    error: OutOfMemory, devices: Sequence[Device], limits: Sequence[int | None]
) -> str:
    """`: GPU:1 needs 1.4 GiB, and 1.2 GiB are free`, for the device that refused; empty if unknown.

    A real allocator reports what it held, not what it was asked for.
    """
    for number, (device, needed, free) in enumerate(
        zip(devices, error.memory_peak_bytes, limits, strict=False)
    ):
        if (
            needed
            and free
            and (number == error.replica or (error.replica is None and needed > free))
        ):
            how = "needs {}" if device.simulated else "held {} when it asked for more"
            return (
                f": {device.label} {how.format(format_bytes(needed))}, and {format_bytes(free)} "
                "are free"
            )
    return ""
