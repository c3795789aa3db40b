"""The bench that a device stands on while it is measured: it gives children, tries batches and keeps the journal."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from gpubalance.errors import (
    BadInput,
    DeadlinePassed,
    EnvironmentFault,
    GpubalanceError,
    GpuLost,
    Interrupted,
    OutOfMemory,
    PartialResult,
)
from gpubalance.jobs.events import Doing, PointDone, TrialDone, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.probe.attempt import Attempt, HotPoint, Work
from gpubalance.jobs.probe.point import measure_point
from gpubalance.results.probe import CurvePoint, Outcome, Trial
from gpubalance.settings.device import JointProfile
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.ahead import Children
from gpubalance.workers.messages import Ready
from gpubalance.workers.worker import Worker


class Halt:
    """When the whole probe is to end: at its time limit, or when another thread was interrupted."""

    def __init__(self, limit: TimeLimit) -> None:
        self.limit = limit
        self.interrupted = threading.Event()

    def check(self) -> None:
        """Raises Interrupted or TimeLimitPassed."""
        if self.interrupted.is_set():
            raise Interrupted(2)
        self.limit.check()


class Bench:
    """One device, alone. Use `close` when done."""

    def __init__(self, number: int, request: ProbeRequest, journal: Journal, halt: Halt, watch: Watch) -> None:
        self.device = request.devices[number]
        self.request = request
        self.journal = journal
        self._halt = halt
        self._watch = watch
        self._known = _certain(journal.of(self.device.uuid, Attempt))
        self._children = Children(self.device, ahead=request.ahead, deadline_s=request.deadline_s, limit=halt.limit)
        self._worker: Worker | None = None
        self.facts: Ready | None = next(iter(journal.of(self.device.uuid, Ready)), None)
        self._passed: set[int] = set()
        self.points: dict[int, CurvePoint] = {}  # the curve, as far as it came when an interrupt ends it
        self.here: list[CurvePoint] = []  # what the child that lives now has measured, in order
        self.began_s = 0.0  # when its first step ended, on the monotonic clock
        self.measured_s = 0.0
        self.deaths: list[GpubalanceError] = []
        self.fault: GpubalanceError | None = None  # what failed though no smaller batch had passed
        self.trials: list[Trial] = []

    @property
    def children(self) -> int:
        """How many children were used."""
        return self._children.started

    @property
    def memory_bytes(self) -> int | None:
        """What the device's allocator may take, less the margin. None before a child was opened, or where unknown."""
        limit = self.facts.memory_limit_bytes[0] if self.facts else None
        return None if limit is None else max(0, limit - self.request.margin_bytes)

    def tell(self, text: str) -> None:
        """Says what is done now."""
        self._watch(Doing(f"{self.device.label}: {text}"))

    @property
    def in_pieces(self) -> bool:
        """Whether a child that has trained with other batches has its memory in pieces: all but profiles' memory."""
        return self.device.profile is None or self.device.profile.memory is None

    def try_batch(
        self, batch: int, reason: str, *, trial: bool = False, fresh: bool = False, last: bool = False
    ) -> Attempt:
        """Trains with a batch and measures it; what an interrupted probe left of it is taken as it is.

        A `trial` has a `fresh` child; after the `last` child no other is started ahead. A child that dies says
        nothing certain of the batch, so it is tried once more in a fresh one; if that dies too, it counts as one that
        does not train, given that another batch does. Raises EnvironmentFault, BadInput, TimeLimitPassed,
        Interrupted, and the death of a child where no batch has passed.
        """
        attempt = self._answer(batch, trial=trial) or self._try(batch, reason, fresh=fresh or trial, last=last)
        if self._is_uncertain(attempt):
            self._keep(attempt, trial=True)
            attempt = self._try(batch, f"once more, as {_UNCERTAIN[attempt.trial.outcome]}", fresh=True, last=last)
        self._keep(attempt, trial=trial or attempt.point is None)
        if attempt.died and not self._passed and self.deaths:
            raise self.deaths[-1]
        return attempt

    def _answer(self, batch: int, *, trial: bool) -> Attempt | None:
        """What is known of a batch. To a trial, that it failed in a child with others' memory in it is no answer."""
        known = self._known.get(batch)
        return known if known and (known.point or known.trial.fresh or not trial) else None

    def _is_uncertain(self, attempt: Attempt) -> bool:
        """A death, and an out-of-memory of a child with memory in pieces: a larger batch has passed."""
        in_pieces = not attempt.trial.fresh and max(self._passed, default=0) > attempt.trial.batch
        return attempt.died or (attempt.trial.outcome == "oom" and in_pieces)

    def _keep(self, attempt: Attempt, *, trial: bool) -> None:
        if self._known.get(attempt.trial.batch) != attempt:
            self.journal.add(self.device.uuid, attempt)
        if not attempt.died:
            self._known[attempt.trial.batch] = attempt
        if trial and attempt.trial not in self.trials:
            self.trials.append(attempt.trial)
            self._watch(TrialDone(self.device, attempt.trial))
        if attempt.point is not None:
            self._passed.add(attempt.trial.batch)
            self.points[attempt.trial.batch] = attempt.point
            self._watch(PointDone(self.device, attempt.point))

    def _try(self, batch: int, reason: str, *, fresh: bool, last: bool) -> Attempt:
        self._halt.check()
        began = time.monotonic()
        fresh = fresh or self._worker is None
        point, peak = None, None
        outcome: Outcome = "fits"
        try:
            worker = self._opened(fresh=fresh, last=last)
            point = self.measured(worker, batch, self.request.duration_s)
            peak = point.memory_peak_bytes
        except OutOfMemory as error:
            outcome, peak = "oom", next(iter(error.memory_peak_bytes), None)
        except (DeadlinePassed, PartialResult) as error:
            self._halt.check()  # it may have been killed by us
            if isinstance(error, GpuLost):
                raise
            outcome = "deadline" if isinstance(error, DeadlinePassed) else "crash"
            self.deaths.append(error)
        if point is not None and peak is not None and self.memory_bytes is not None and peak > self.memory_bytes:
            outcome, point = "margin", None
        if point is None:
            self._drop()
        trial = Trial(
            batch=batch,
            outcome=outcome,
            seconds=time.monotonic() - began,
            reason=reason,
            fresh=fresh,
            memory_peak_bytes=peak,
        )
        return Attempt(trial=trial, point=point)

    def measured(self, worker: Worker, batch: int, duration_s: float) -> CurvePoint:
        """A point by that child, which is noted among what it has measured.

        cuDNN and cuBLAS say in many ways that memory is short, of which some read like a fault of the model. It is
        memory only if a smaller batch trains: then this raises OutOfMemory. Where none has yet, `fault` keeps it.
        """
        try:
            return self._measured(worker, batch, duration_s)
        except (EnvironmentFault, BadInput) as error:
            smaller_passed = any(smaller < batch for smaller in self._passed)
            if not smaller_passed and (batch == 1 or isinstance(error, BadInput)):
                raise
            self.fault = self.fault or (None if smaller_passed else error)
            raise OutOfMemory(error.message, log=error.log) from None

    def _measured(self, worker: Worker, batch: int, duration_s: float) -> CurvePoint:
        began = time.monotonic()
        gpu = None if self.device.simulated else self.device.uuid
        until_s = self._halt.limit.until_s
        with lost_gpus_told([self.device]):
            point, measured_s = measure_point(
                worker, batch, duration_s=duration_s, until_s=until_s, gpu=gpu, first=not self._passed
            )
        if point.telemetry is not None and point.telemetry.ecc_uncorrected:
            raise PartialResult(
                f"{self.device.label} had {point.telemetry.ecc_uncorrected} memory errors that ECC did not correct at "
                f"batch {batch}: what it computes is not to be trusted"
            )
        self.began_s = self.began_s or began
        self.measured_s += measured_s
        self.here.append(point)
        return point

    def worker(self, *, last: bool = False) -> Worker:
        """The child that lives, or a new one. Raises what `Worker.open` does."""
        self._halt.check()
        return self._opened(fresh=self._worker is None, last=last)

    @property
    def alive(self) -> bool:
        """Whether a child lives that has measured."""
        return self._worker is not None

    def _opened(self, *, fresh: bool, last: bool) -> Worker:
        if not fresh and self._worker is not None:
            return self._worker
        self._drop()
        worker = self._children.take(last=last)
        self._worker = worker
        self._halt.check()  # who interrupted us may have looked for a child before this one was there
        with lost_gpus_told([self.device]):
            worker.open(self.request.settings, JointProfile(), seed=self.request.seed)
        if self.facts is None:
            self.facts = worker.facts
            self.journal.add(self.device.uuid, worker.facts)
        return worker

    def lose(self, error: GpubalanceError) -> None:
        """Gives the child up, after an error that is none of a batch that is tried. Raises it where the GPU is lost."""
        self._halt.check()
        if isinstance(error, GpuLost):
            raise error
        if not isinstance(error, OutOfMemory):
            self.deaths.append(error)
        self._drop()

    def note_hot(self, point: CurvePoint, *, new: bool) -> None:
        """Keeps a point that was measured once more after the device's speed had changed."""
        if new:
            self.journal.add(self.device.uuid, HotPoint(point=point))
        self._watch(PointDone(self.device, point))

    def forward_flops(self) -> float | None:
        """Operations of one sample's forward pass; None where they are not known."""
        known = self.journal.of(self.device.uuid, Work)
        if known:
            return known[0].forward_flops
        if self._worker is None:
            return None
        with suppress(PartialResult, DeadlinePassed):
            work = Work(forward_flops=self._worker.forward_flops())
            self.journal.add(self.device.uuid, work)
            return work.forward_flops
        self._drop()
        return None

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None
        self.here = []
        self.began_s = 0.0

    def kill(self) -> None:
        """Ends what waits for a child; for another thread."""
        self._children.kill()
        worker = self._worker
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """Ends every child."""
        self._drop()
        self._children.close()


def _certain(attempts: list[Attempt]) -> dict[int, Attempt]:
    """By batch, what need not be tried again: a death may have been the machine's, which has been mended since."""
    return {attempt.trial.batch: attempt for attempt in attempts if not attempt.died}


_UNCERTAIN: dict[str, str] = {
    "crash": "the child died",
    "deadline": "the child fell silent",
    "oom": "a larger batch passed",
}
