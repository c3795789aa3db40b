"""What fits into the devices' memory in a joint run, found by trying."""

from __future__ import annotations

from collections.abc import Sequence

from gpubalance.errors import NothingFits, OutOfMemory
from gpubalance.jobs.events import Doing, Watch
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.limit import largest_that_fits, predict_limit
from gpubalance.settings.device import Device
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import NO_LIMIT, TimeLimit
from gpubalance.workers.messages import Measured
from gpubalance.workers.worker import Worker

# On a real device every failed try costs a child and TensorFlow's own retries, 10 s and more.
_TOLERANCE_ON_GPU = 0.01
_POINTS = (4, 2)  # a memory line goes through this part of the batches


class Rig:
    """The run's worker. After an out-of-memory on a real device it is another one: the old one can stay broken."""

    def __init__(self, request: RunRequest, watch: Watch, limit: TimeLimit = NO_LIMIT) -> None:
        self._request = request
        self._watch = watch
        self._limit = limit
        self.refused: OutOfMemory | None = None  # the last that a search met
        self.worker = self._start()

    def _start(self) -> Worker:
        devices = ", ".join(f"{d.label} {d.name}" for d in self._request.devices)
        self._watch(Doing(f"starting TensorFlow, building {self._request.settings.model} on {devices}"))
        measuring = self._request.measuring
        worker = Worker(self._request.devices, deadline_s=measuring.deadline_s, limit=self._limit)
        worker.open(self._request.settings, self._request.joint, seed=measuring.seed)
        return worker

    def tell(self, text: str) -> None:
        """Says what is done now."""
        self._watch(Doing(text))

    def recover(self) -> None:
        """Makes the worker fit for use after an out-of-memory."""
        if any(not d.simulated for d in self._request.devices):
            self.worker.end()
            self.worker = self._start()

    def peaks(self, split: Shares) -> tuple[int | None, ...] | None:
        """Trains one step: each device's memory, or None where one of them ran out of it."""
        try:
            for reply in self.worker.measure(split):
                if isinstance(reply, Measured):
                    return reply.memory_peak_bytes
        except OutOfMemory as error:
            self.refused = error
            self.recover()
        return None

    def fits(self, split: Shares) -> bool:
        """Whether a step with this split goes through."""
        return self.peaks(split) is not None

    def close(self) -> None:
        """Ends the worker."""
        self.worker.end()

    @property
    def tolerance(self) -> float:
        """How near the two ends of a search must come."""
        return 0.0 if all(d.simulated for d in self._request.devices) else _TOLERANCE_ON_GPU


def predicted_limits(rig: Rig, request: RunRequest) -> list[int | None] | None:
    """Each device's largest micro-batch in this joint run, by a line through the memory of two smaller splits.

    None where even the smallest of them does not fit, and for a device whose memory or use of it is not known.
    """
    sizes = request.split.micro_batches
    points: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for part in _POINTS:
        tried = tuple(max(1, size // part) for size in sizes)
        peaks = rig.peaks(Shares(tried))
        if peaks is None:
            return None
        for own, batch, peak in zip(points, tried, peaks, strict=True):
            own += [(batch, peak)] if peak is not None else []
    return [
        predict_limit(own, device.memory_bytes) if len(own) == len(_POINTS) and device.memory_bytes else None
        for own, device in zip(points, request.devices, strict=True)
    ]


def suggest(rig: Rig, request: RunRequest) -> tuple[Shares | None, list[int]]:
    """A split that was tried and fits, and the replicas that have too much at a time.

    For after the request's own split ran out of memory. As near to it as the predicted limits allow, then nine tenths
    of that, then halves; each device keeps its number of micro-batches, as it is their size that memory is for.
    """
    split = request.split
    sizes = split.micro_batches
    limits = predicted_limits(rig, request) or [None] * len(sizes)
    too_large = [i for i, (b, most) in enumerate(zip(sizes, limits, strict=True)) if most and b > most]
    nearest = [max(1, min(b, most)) if most else b for b, most in zip(sizes, limits, strict=True)]
    for part in (1.0, 0.9, *(0.5**k for k in range(1, max(nearest).bit_length() + 1))):
        smaller = tuple(max(1, int(b * part)) for b in nearest)
        if smaller == sizes:
            continue
        most = zip(split.batches, smaller, split.counts, strict=True)
        tried = Shares(tuple(min(batch, size * count) for batch, size, count in most), smaller)
        rig.tell(f"trying {tried}")
        if rig.fits(tried):
            return tried, too_large
    return None, too_large


def largest_even_share(rig: Rig, request: RunRequest, share: int) -> int:
    """The largest equal share that fits on every device, when `share` does not and the request's own sizes do."""
    limits = predicted_limits(rig, request) or []
    known = [most for most in limits if most]

    def fits(batch: int) -> bool:
        tried = Shares((batch,) * len(request.devices))
        rig.tell(f"trying {tried}")
        return rig.fits(tried)

    return largest_that_fits(
        fits,
        low=min(request.split.micro_batches),
        high=share,
        guess=min(known, default=None) if known else None,
        tolerance=rig.tolerance,
    )


def nothing_fits(error: OutOfMemory, rig: Rig, request: RunRequest) -> NothingFits:
    """The error of a run whose split does not fit, with one that was tried and does, where there is one."""
    rig.tell(f"{error.message}; looking for what fits")
    fitting, too_large = suggest(rig, request)
    split = request.split
    word = "micro-batch" if split.accumulates else "batch"
    if error.replica is not None and error.replica not in too_large:
        too_large = sorted({*too_large, error.replica})
    places = [
        f"{request.devices[i].label} ({request.devices[i].name}) at {word} {split.micro_batches[i]}" for i in too_large
    ]
    where = "the joint run" if len(request.devices) > 1 else "the run"
    message = f"out of memory: {' and '.join(places) or 'a device'} in {where} of {split}"
    remedy = "not even one sample a device fits: use a smaller model"
    if fitting is None:
        message += _needs_and_has(rig.refused or error, request.devices, rig.worker.facts.memory_limit_bytes)
    else:
        remedy = f"this fits, tried: {fitting.options}"
    return NothingFits(message, remedy=remedy, log=error.log, partial=error.partial)


def _needs_and_has(error: OutOfMemory, devices: Sequence[Device], limits: Sequence[int | None]) -> str:
    """`: GPU:1 needs 1.4 GiB, and 1.2 GiB are free`, of the device that refused; empty where that is not known.

    A real allocator tells what it held, not what it was asked for.
    """
    for number, (device, needed, free) in enumerate(zip(devices, error.memory_peak_bytes, limits, strict=False)):
        if needed is None or free is None:
            continue
        if number == error.replica or (error.replica is None and needed > free):
            how = f"needs {format_bytes(needed)}"
            if not device.simulated:
                how = f"held {format_bytes(needed)} when it asked for more"
            return f": {device.label} {how}, and {format_bytes(free)} are free"
    return ""
