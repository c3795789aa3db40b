"""Finds by trying what fits into the devices' memory in a joint run."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import GpubalanceError, NothingFits, OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.keep.probes import probe_of
from gpubalance.jobs.measure.window import Peaks
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


class Fitting:
    """The search for a split that fits, for a run whose own split ran out of memory."""

    def __init__(self, party: Party, request: RunRequest, watch: Watch, peaks: Peaks = ()) -> None:
        """`peaks` has the bytes that the request's split takes on each device, if that is known."""
        self._party = party
        self._split = request.split
        self._settings = request.settings
        self._devices = request.devices
        self._watch = watch
        peaks = peaks or (None,) * len(self._devices)
        self._known = self._lines(self._split.micro_batches, peaks)
        self._refused: OutOfMemory | None = None  # the latest error in the search

    def suggest(self, failed: OutOfMemory, *, believed: bool = False) -> Shares | None:
        """A split that was tried and fits, or None.

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
        most = self._predicted(sizes, peaks)
        suspected = [i for i in sorted(halved) if most[i] < wanted[i]]
        if not suspected:
            suspected = sorted(halved)
        for part in (1.0, 0.9, 0.0):
            larger = list(wanted)
            for i in suspected:
                larger[i] = max(sizes[i], int(part * most[i]))
            split = self._with(tuple(larger))
            is_known = split.micro_batches == sizes or (believed and split == self._split)
            if not is_known and self._tried(split) is not None:
                return split
        return self._with(sizes)

    def _predicted(self, sizes: Sizes, peaks: Peaks) -> list[int]:
        """The largest micro-batches that may fit, up to those that are wanted.

        A line through memory predicts them; where there is none it is the size that fits.
        """
        limits = self._limits(self._points(self._with(sizes), peaks))
        most = []
        for wanted, limit, fits in zip(self._split.micro_batches, limits, sizes, strict=True):
            if limit:
                most.append(min(wanted, limit))
            else:
                most.append(fits)
        return most

    def _trains_at_all(self) -> bool:
        """Whether the fewest samples train: else the error is another fault."""
        fewest = self._with((1,) * len(self._split.batches))
        return self._tried(fewest) is not None

    def _lowered(
        self, failed: OutOfMemory, *, blamed: bool
    ) -> tuple[Sizes, Peaks, set[int]] | None:
        """Micro-batches that fit after halving, their peaks, and which were halved.

        Those are halved that the errors blame, or all.
        """
        sizes = list(self._split.micro_batches)
        halved = set[int]()
        error = failed
        while True:
            replicas = range(len(sizes))
            if blamed and error.replica is not None:
                replicas = range(error.replica, error.replica + 1)
            if all(sizes[i] == 1 for i in replicas):
                return None
            halved.update(replicas)
            for i in replicas:
                sizes[i] = _half(sizes[i])
            peaks = self._tried(self._with(tuple(sizes)))
            if peaks is not None:
                return tuple(sizes), peaks, halved
            error = self._refused or error

    def _with(self, sizes: Sizes) -> Shares:
        """The split with micro-batches of these sizes, at most as many for each as it has."""
        batches = []
        for batch, size, count in zip(self._split.batches, sizes, self._split.counts, strict=True):
            batches.append(min(batch, size * count))
        return Shares(tuple(batches), sizes)

    def too_small_for(self, split: Shares) -> str | None:
        """The label of the device that surely does not hold its part, None if none is known."""
        label, least = None, 1.0
        limits = self._limits(self._known)
        for device, limit, size in zip(self._devices, limits, split.micro_batches, strict=True):
            if limit and limit < size and limit / size <= least:
                label, least = device.label, limit / size
        return label

    def _lines(self, sizes: Sizes, peaks: Peaks) -> list[Points]:
        """Each device's memory at two sizes, by the peaks of these sizes, which fit.

        How it grows with the batch is told by a profile, or by a probe that was made here. Empty
        for a device of which either is unknown.
        """
        lines: list[Points] = []
        small = sorted({1, min(sizes)})
        for device, size, peak in zip(self._devices, sizes, peaks, strict=True):
            per_sample = self._bytes_per_sample(device)
            if not peak or not per_sample:
                lines.append([])
                continue
            line = []
            for batch in small:
                line.append((batch, round(peak - per_sample * (size - batch))))
            lines.append(line)
        return lines

    def _bytes_per_sample(self, device: Device) -> float | None:
        if device.profile is not None:
            return device.profile.memory_per_sample
        probe = probe_of(device, self._settings)
        if probe is None:
            return None
        peaks = [(p.batch, p.memory_peak_bytes) for p in probe.curve if p.memory_peak_bytes]
        if len(peaks) < 2:
            return None
        (small, low), (large, high) = sorted(peaks)[-2:]
        return (high - low) / (large - small)

    def largest_even_share(self, share: int) -> int:
        """The largest equal share up to `share` that fits on every device.

        The smallest of the request's own sizes does.
        """
        count = len(self._devices)
        low = min(self._split.micro_batches)
        points = self._known
        if not all(points):
            equal = Shares((low,) * count)
            points = self._points(equal, self._tried(equal) or (None,) * count)
        limits = {replica: most for replica, most in enumerate(self._limits(points)) if most}
        tightest = 0
        memory_bytes = None
        own_points: Points = [(low, 0)]
        if limits:
            tightest = min(limits, key=lambda replica: limits[replica])
            memory_bytes = self._devices[tightest].memory_bytes
            own_points = points[tightest]

        def attempt(batch: int, _: str) -> TriedBatch:
            peaks = self._tried(Shares((batch,) * count))
            if not peaks:
                return TriedBatch(batch, fits=peaks is not None)
            return TriedBatch(batch, fits=True, memory_peak_bytes=peaks[tightest])

        step = 1
        if not all(device.simulated for device in self._devices):
            step = max(1, int(_TOLERANCE_ON_GPU * low))
        fails = -(-share // step) * step
        failed = None
        if self.too_small_for(Shares((share,) * count)) is None:  # so it was tried
            failed = fails
        limit = find_limit(
            attempt,
            own_points,
            memory_bytes=memory_bytes,
            max_batch=fails,
            multiple=step,
            failed=failed,
        )
        return min(share, max(low, limit.fits or 0))

    def error(self, error: OutOfMemory) -> GpubalanceError:
        """The error of a run whose split does not fit. It names one that was tried and does."""
        self._watch(Doing(f"{error.message}; looking for what fits"))
        devices, split = self._devices, self._split
        fitting = self.suggest(error)
        if fitting is None and error.fault is not None:
            error.fault.partial = error.partial
            return error.fault
        where = "the joint run" if len(devices) > 1 else "the run"
        full = self._full_text(error, fitting)
        message = f"out of memory: {full} in {where} of {split}"
        if fitting is None:
            limits = self._party.facts.memory_limit_bytes
            message += _needs_and_has(self._refused or error, devices, limits)
            remedy = "not even one sample a device fits: use a smaller model"
        elif fitting == split:
            remedy = (
                "it fits on a second try: run it again, and see what else uses the devices' memory"
            )
        else:
            remedy = f"this fits, tried: {fitting.options}"
        return NothingFits(message, remedy=remedy, log=error.log, partial=error.partial)

    def _full_text(self, error: OutOfMemory, fitting: Shares | None) -> str:
        """`GPU:1 (GTX 1080) at batch 700`: what got too much, else what is blamed."""
        sizes = self._split.micro_batches
        full = []
        if fitting is not None:
            full = [i for i, size in enumerate(fitting.micro_batches) if size < sizes[i]]
        elif error.replica is not None:
            full = [error.replica]
        word = "batch"
        if self._split.accumulates:
            word = "micro-batch"
        places = []
        for i in full:
            device = self._devices[i]
            places.append(f"{device.label} ({device.name}) at {word} {sizes[i]}")
        return " and ".join(places) or "a device"

    def _points(self, split: Shares, peaks: Peaks) -> list[Points]:
        """Each device's memory at two sizes: as `_lines` has it, else at this split and half of it.

        The split takes these peaks.
        """
        sizes = split.micro_batches
        lines = self._lines(sizes, peaks)
        if all(lines):
            return lines
        halves = tuple(map(_half, sizes))
        batches = [size * count for size, count in zip(halves, split.counts, strict=True)]
        lower_peaks = self._tried(Shares(tuple(batches), halves)) or peaks
        points: list[Points] = []
        for half, low, size, peak in zip(halves, lower_peaks, sizes, peaks, strict=True):
            if low and peak:
                points.append([(half, low), (size, peak)])
            else:
                points.append([])
        return points

    def _limits(self, points: Sequence[Points]) -> list[int | None]:
        """Each device's largest micro-batch by a line; None if its memory or its use is unknown."""
        limits = []
        for device, own in zip(self._devices, points, strict=True):
            limit = None
            if len(own) > 1 and device.memory_bytes:
                limit = predict_limit(own, device.memory_bytes)
            limits.append(limit)
        return limits

    def _tried(self, split: Shares) -> Peaks | None:
        """Trains one step: each device's peak memory, or None if one of them ran out."""
        self._watch(Doing(f"trying {split}"))
        try:
            last = self._party.ask(lambda worker: list(worker.measure(split)))[-1]
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
    each = zip(devices, error.memory_peak_bytes, limits, strict=False)
    for number, (device, needed, free) in enumerate(each):
        if not needed or not free:
            continue
        if number == error.replica or (error.replica is None and needed > free):
            needs = f"needs {format_bytes(needed)}"
            if not device.simulated:
                needs = f"held {format_bytes(needed)} when it asked for more"
            return f": {device.label} {needs}, and {format_bytes(free)} are free"
    return ""
