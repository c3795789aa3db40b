"""What follows when a device's memory does not hold its batch.

- `probe` looks for a device's limit by trying batches: `planning/search.py`, called in
  `jobs/probe/limit.py`. `may_be_memory` tells a lack of memory from another fault.
- `run` ends with an error that names a split which was tried and fits: `JointMemorySearch.error`.
  If only the even split beside it does not fit, that is lowered: `largest_even_share`.
- `balance` plans on with lower limits: `JointMemorySearch.fitting_sizes`.
- `fit` ends with an error; nothing is tried: `training/memory.py`.

The first failure of a split may be chance, such as another program's memory. So what should fit is
tried once more before a failure is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from gpubalance.errors import (
    BadInput,
    EnvironmentFault,
    GpubalanceError,
    NothingFits,
    OutOfMemory,
    Refused,
)
from gpubalance.jobs.events import Doing, Watch
from gpubalance.jobs.measure.window import Peaks
from gpubalance.jobs.measure.workload_runner import trained_before
from gpubalance.jobs.saved import probe_of
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.memory import Points, predict_limit
from gpubalance.planning.search import TriedBatch, find_limit
from gpubalance.results.probe import peaks_by_batch
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device
from gpubalance.settings.record import Batch
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.system.files import is_about_files
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker_group import WorkerGroup

# On a real device every failed try costs a worker and TensorFlow's own retries: 10 s and more.
_TOLERANCE_ON_GPU = 0.01

Sizes = tuple[int, ...]


def may_be_memory(
    fault: EnvironmentFault | BadInput, batch: int, *, smaller_passed: bool
) -> bool:
    """Whether a fault of a device that trains alone may be a lack of memory.

    cuDNN and cuBLAS report one in many ways, some of which read like a fault of the model. What a
    check refused before any training is no lack of memory. If no smaller batch passed, neither is a
    BadInput, nor any fault at a batch of 1.
    """
    if isinstance(fault, Refused) or is_about_files(fault.message):
        return False
    return smaller_passed or not (batch == 1 or isinstance(fault, BadInput))


class FittingSize(NamedTuple):
    """The largest micro-batch that is known to fit on a device."""

    # The device's number among the request's devices
    device: Annotated[int, Field(ge=0)]
    micro_batch: Batch


class JointMemorySearch:
    """The search for a split that fits, in place of the request's own or of the even split."""

    def __init__(
        self,
        worker_group: WorkerGroup,
        request: RunRequest,
        watch: Watch,
        peaks: Peaks = (),
    ) -> None:
        """`peaks` has the bytes that the request's split takes on each device, if that is known."""
        self._group = worker_group
        self._split = request.split
        self._settings = request.settings
        self._devices = request.devices
        self._watch = watch
        peaks = peaks or (None,) * len(self._devices)
        sizes = self._split.micro_batches
        self._lines = lines_through(self._devices, self._settings, sizes, peaks)
        self._refused: OutOfMemory | None = None  # the latest error in the search

    def suggest(
        self, failed: OutOfMemory, *, believed: bool = False
    ) -> BatchSplit | None:
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
        lowered = self._lowered(failed, blamed=True) or self._lowered(
            failed, blamed=False
        )
        if lowered is None:
            return None
        sizes, peaks, halved = lowered
        maximum = self._predicted(sizes, peaks)
        suspected = [
            replica for replica in halved if maximum[replica] < wanted[replica]
        ]
        # What lines predict, nine tenths of it, and what is known to fit, with the other devices'
        # micro-batches as they were wanted.
        for part in (1.0, 0.9, 0.0):
            larger = list(wanted)
            for replica in suspected or halved:
                larger[replica] = max(sizes[replica], int(part * maximum[replica]))
            split = self._with(tuple(larger))
            is_known = split.micro_batches == sizes or (
                believed and split == self._split
            )
            if not is_known and self._tried(split) is not None:
                return split
        return self._with(sizes)

    def fitting_sizes(
        self, failed: OutOfMemory, *, believed: bool
    ) -> list[FittingSize]:
        """What fits on each device that was given more than it holds, found by trying.

        If the failure is not `believed`, the whole split may be tried again. If the split fits
        then, the result is empty. Raises NothingFits if no split fits, or another error if the
        failure only looked like a lack of memory.
        """
        fitting_split = self.suggest(failed, believed=believed)
        if fitting_split is None and failed.fault is not None:
            raise failed.fault  # not a lack of memory: even one sample per device failed
        if fitting_split is None:
            raise NothingFits(
                failed.message,
                remedy="not even one sample per device fits: use a smaller model",
            )
        fitting = []
        wanted = self._split.micro_batches
        for device, size in enumerate(fitting_split.micro_batches):
            if size < wanted[device]:
                fitting.append(FittingSize(device, size))
        return fitting

    def _predicted(self, sizes: Sizes, peaks: Peaks) -> list[int]:
        """The largest micro-batches that may fit, up to those that are wanted.

        A line through memory predicts them; where there is none it is the size that fits.
        """
        limits = limits_by(self._lines_at(self._with(sizes), peaks), self._devices)
        maximum = []
        for wanted, limit, fits in zip(
            self._split.micro_batches, limits, sizes, strict=True
        ):
            if limit:
                maximum.append(min(wanted, limit))
            else:
                maximum.append(fits)
        return maximum

    def _trains_at_all(self) -> bool:
        """Whether the fewest samples train: else the error is another fault."""
        fewest = self._with((1,) * len(self._split.batches))
        return self._tried(fewest) is not None

    def _lowered(
        self, failed: OutOfMemory, *, blamed: bool
    ) -> tuple[Sizes, Peaks, set[int]] | None:
        """Micro-batches that fit after halving, their peaks, and which replicas' were halved.

        With `blamed` those are halved that the errors blame, else all. None if these are 1 and
        still do not fit.
        """
        sizes = list(self._split.micro_batches)
        halved = set[int]()
        error = failed
        while True:
            replicas = range(len(sizes))
            if blamed and error.replica is not None:
                replicas = range(error.replica, error.replica + 1)
            if all(sizes[replica] == 1 for replica in replicas):
                return None
            halved.update(replicas)
            for replica in replicas:
                sizes[replica] = _half(sizes[replica])
            peaks = self._tried(self._with(tuple(sizes)))
            if peaks is not None:
                return tuple(sizes), peaks, halved
            error = self._refused or error

    def _with(self, sizes: Sizes) -> BatchSplit:
        """The split with micro-batches of these sizes, at most as many for each as it has."""
        batches = []
        for batch, size, count in zip(
            self._split.batches, sizes, self._split.counts, strict=True
        ):
            batches.append(min(batch, size * count))
        return BatchSplit(tuple(batches), sizes)

    def device_too_small_for(self, split: BatchSplit) -> str | None:
        """The label of the device that surely lacks most for its part, None if none is known to."""
        label = None
        min_ratio = 1.0  # of what fits to what is wanted
        limits = limits_by(self._lines, self._devices)
        for device, limit, size in zip(
            self._devices, limits, split.micro_batches, strict=True
        ):
            if limit and limit < size and limit / size <= min_ratio:
                label = device.label
                min_ratio = limit / size
        return label

    def largest_even_share(self, share: int) -> int:
        """The largest equal share up to `share` that fits on every device.

        The smallest of the request's own micro-batches is known to fit on every device.
        """
        count = len(self._devices)
        low = min(self._split.micro_batches)
        lines = self._lines
        if not all(lines):
            equal = BatchSplit((low,) * count)
            lines = self._lines_at(equal, self._tried(equal) or (None,) * count)
        limits: dict[int, int] = {}
        for replica, maximum in enumerate(limits_by(lines, self._devices)):
            if maximum:
                limits[replica] = maximum
        tightest = 0
        memory_bytes = None
        line: Points = [(low, 0)]
        if limits:
            tightest = min(limits, key=limits.__getitem__)
            memory_bytes = self._devices[tightest].memory_bytes
            line = lines[tightest]

        def attempt(batch: int, _: str) -> TriedBatch:
            peaks = self._tried(BatchSplit((batch,) * count))
            if not peaks:
                return TriedBatch(batch, fits=peaks is not None)
            return TriedBatch(batch, fits=True, memory_peak_bytes=peaks[tightest])

        step = 1
        if not all(device.simulated for device in self._devices):
            step = max(1, int(_TOLERANCE_ON_GPU * low))
        fails = -(-share // step) * step
        failed = None
        # If no device is known to be too small, this share was tried, and did not fit.
        if self.device_too_small_for(BatchSplit((share,) * count)) is None:
            failed = fails
        limit = find_limit(
            attempt,
            line,
            memory_bytes=memory_bytes,
            max_batch=fails,
            multiple=step,
            failed=failed,
        )
        return min(share, max(low, limit.fits or 0))

    def error(self, error: OutOfMemory) -> GpubalanceError:
        """The error of a run whose split does not fit. It names a split that was tried and fits."""
        self._watch(Doing(f"{error.message}; looking for what fits"))
        devices = self._devices
        split = self._split
        fitting = self.suggest(error)
        if fitting is None and error.fault is not None:
            error.fault.partial = error.partial
            return error.fault
        full = self._full_text(error, fitting)
        message = f"out of memory: {full} in the run of {split}"
        if fitting is None:
            limits = self._group.facts.memory_limit_bytes
            message += _needs_and_has(self._refused or error, devices, limits)
            remedy = "not even one sample per device fits: use a smaller model"
        elif fitting == split:
            remedy = (
                "the same split fits on a second try: run again, and see what else "
                "uses the devices' memory"
            )
        else:
            remedy = f"this fits (tried): {fitting.options}"
        return NothingFits(message, remedy=remedy, log=error.log, partial=error.partial)

    def _full_text(self, error: OutOfMemory, fitting: BatchSplit | None) -> str:
        """`GPU:1 (GTX 1080) at batch 700`: what gets less in `fitting`, else what is blamed."""
        sizes = self._split.micro_batches
        full = []
        if fitting is not None:
            for replica, fits in enumerate(fitting.micro_batches):
                if fits < sizes[replica]:
                    full.append(replica)
        elif error.replica is not None:
            full = [error.replica]
        word = "batch"
        if self._split.accumulates:
            word = "micro-batch"
        places = []
        for replica in full:
            device = self._devices[replica]
            places.append(f"{device.label} ({device.name}) at {word} {sizes[replica]}")
        return " and ".join(places) or "a device"

    def _lines_at(self, split: BatchSplit, peaks: Peaks) -> list[Points]:
        """Each device's line through memory, by `lines_through` if it knows all.

        Else the lines go through the `peaks` of this split and those of half of it, which is tried.
        """
        sizes = split.micro_batches
        lines = lines_through(self._devices, self._settings, sizes, peaks)
        if all(lines):
            return lines
        halves = tuple(map(_half, sizes))
        batches = [
            size * count for size, count in zip(halves, split.counts, strict=True)
        ]
        lower_peaks = self._tried(BatchSplit(tuple(batches), halves)) or peaks
        lines = []
        for half, low, size, peak in zip(
            halves, lower_peaks, sizes, peaks, strict=True
        ):
            line: Points = []
            if low and peak:
                line = [(half, low), (size, peak)]
            lines.append(line)
        return lines

    def _tried(self, split: BatchSplit) -> Peaks | None:
        """Trains one step; returns each device's peak memory, None if one of them ran out."""
        self._watch(Doing(f"trying {split}"))
        try:
            with self._group.worker() as worker:
                *_, last = worker.measure(split)
        except OutOfMemory as error:
            self._refused = error
            return None
        if not isinstance(last, Measured):
            return None
        trained_before(worker).peaks[split, False] = last.memory_peak_bytes
        return last.memory_peak_bytes


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
                needs = f"held {format_bytes(needed)} when it requested more"
            return f": {device.label} {needs}, and {format_bytes(free)} are free"
    return ""


def lines_through(
    devices: Sequence[Device], settings: Settings, sizes: Sequence[int], peaks: Peaks
) -> list[Points]:
    """Each device's memory in bytes at a micro-batch of 1, and at the smallest of `sizes` or 2.

    It is computed from the `peaks` of these sizes, which fit, and from the bytes of a sample, which
    a profile or a probe on this machine gives. Empty for a device of which either is unknown.
    """
    lines: list[Points] = []
    batches = 1, max(2, min(sizes))
    for device, size, peak in zip(devices, sizes, peaks, strict=True):
        line = []
        per_sample = _bytes_per_sample(device, settings)
        if peak and per_sample:
            line = [
                (batch, round(peak - per_sample * (size - batch))) for batch in batches
            ]
        lines.append(line)
    return lines


def _bytes_per_sample(device: Device, settings: Settings) -> float | None:
    if device.profile is not None:
        return device.profile.memory_per_sample
    probe = probe_of(device, settings)
    if probe is None:
        return None
    peaks = peaks_by_batch(probe.curve)
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = peaks[-2:]
    return (high - low) / (large - small)


def limits_by(lines: Sequence[Points], devices: Sequence[Device]) -> list[int | None]:
    """Each device's largest micro-batch by its line; None if its memory or its line is unknown."""
    limits = []
    for line, device in zip(lines, devices, strict=True):
        limit = None
        if len(line) > 1 and device.memory_bytes:
            limit = predict_limit(line, device.memory_bytes)
        limits.append(limit)
    return limits
