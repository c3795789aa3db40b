"""The worker of a device under probe: its workers, one after the other, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from gpubalance.errors import BadInput, GpubalanceError, GpuLost, OutOfMemory
from gpubalance.jobs.endings import raise_if_refused, raising_gpu_lost
from gpubalance.jobs.events import Doing, ModelBuilt, Watch
from gpubalance.jobs.journal import Journal
from gpubalance.results.checkup import FEW_SAMPLES, few_samples_text
from gpubalance.settings.device import Device
from gpubalance.settings.measuring import margin_on, too_few_samples
from gpubalance.settings.record import Record
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import Build, Ready
from gpubalance.workers.worker import Worker
from gpubalance.workers.worker_group import KnownRules, WorkerGroup

R = TypeVar("R", bound=Record)


@dataclass
class ProbeWorker:
    """One device, alone with a worker that is asked within the `time_limit`.

    Its `worker_group` has one worker at a time; the caller must end it. `next_group` measures after
    that, and loads TensorFlow while the last worker here builds its model. `facts` are what the
    first worker said of the model, in this command or the interrupted one that it resumes. `deaths`
    are the errors of workers that died or fell silent. `report_left` takes about how many seconds
    the device still needs, and what a step of a plan will take.
    """

    device: Device
    request: ProbeRequest
    journal: Journal
    kept_rules: KnownRules | None
    time_limit: TimeLimit
    watch: Watch
    report_left: Callable[[float, float], None]
    next_group: WorkerGroup | None = None
    deaths: list[GpubalanceError] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        self.worker_group = WorkerGroup(
            [self.device],
            build=Build(settings=request.settings, seed=request.seed),
            purpose="probe",
            deadline_s=request.deadline_s,
            limit=self.time_limit,
            kept_rules=self.kept_rules,
        )
        self.facts = self.journal.load(self.device.uuid, Ready)

    @property
    def margin_bytes(self) -> int:
        """What is kept free on this device."""
        return margin_on(self.device, self.request.margin_bytes)

    @property
    def usable_bytes(self) -> int | None:
        """What the device's allocator may take, less the margin.

        None if unknown, as before the model is built.
        """
        if self.facts is None:
            return None
        limit_bytes = self.facts.memory_limit_bytes[0]
        if limit_bytes is None:
            return None
        return max(0, limit_bytes - self.margin_bytes)

    @property
    def max_batch(self) -> int | None:
        """The largest batch that is asked for, or that the user's data has samples for."""
        sizes = [self.request.max_batch]
        if self.facts is not None:
            sizes.append(self.facts.samples)
        return min((size for size in sizes if size is not None), default=None)

    @property
    def fragments_memory(self) -> bool:
        """Whether earlier batches fragment a worker's memory: not if a profile counts it."""
        return self.device.profile is None or self.device.profile.memory is None

    def get_or_make(
        self, what: str, kind: type[R], make: Callable[[], R | None]
    ) -> R | None:
        """What an interrupted probe left of this device, else what `make` returns, which is kept.

        None is not kept.
        """
        key = f"{self.device.uuid} {what}"
        record = self.journal.load(key, kind)
        if record is None:
            record = make()
            if record is not None:
                self.journal.keep(key, record)
        return record

    def report(self, text: str) -> None:
        """Emits what is done now, after the device's label."""
        self.watch(Doing(f"{self.device.label}: {text}"))

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """The worker that is there, or another in its place. Raises its failure."""
        with raising_gpu_lost([self.device]), self.worker_group.worker() as worker:
            yield worker

    def ensure_worker(self, *, fresh: bool = False, last: bool = False) -> None:
        """Starts a worker with the model unless one lives, or if it must be a `fresh` one.

        Meanwhile the worker that is needed next loads TensorFlow. After the `last` one this device
        needs no other. Raises what a `Worker` does.
        """
        self.time_limit.check()
        if self.worker_group.alive and not fresh:
            return
        self.worker_group.drop()
        loads_next = self.next_group
        if self.fragments_memory and not last:
            # The next try of the limit wants a fresh worker of this device.
            loads_next = self.worker_group
        if not self.request.ahead:  # by --no-ahead
            loads_next = None
        with raising_gpu_lost([self.device]):
            self.worker_group.start(then=loads_next)
        if self.facts is None:
            self.facts = self.worker_group.facts
            self.journal.keep(self.device.uuid, self.facts)
            self._report_model(self.facts)
        if self.request.for_split:
            raise_if_refused(self.facts)
        self._refuse_few(self.facts.samples)

    def _refuse_few(self, samples: int | None) -> None:
        """Raises BadInput if the user's data is too small for what is asked for."""
        request = self.request
        if samples is None:
            return
        where = f"--data {request.settings.data}"
        if samples < request.least_samples:
            raise too_few_samples(where, samples, request.least_samples)
        if samples < request.batch_multiple:
            raise BadInput(
                f"{where} has only {samples} samples, and batches are multiples of "
                f"{request.batch_multiple}",
                remedy="give more samples, or use a smaller --batch-multiple",
            )

    def _report_model(self, facts: Ready) -> None:
        """Tells of a user's own model, in a balance (`for_split`) only, and of few samples.

        It does so with the first device.
        """
        settings = self.request.settings
        if self.device != self.request.devices[0]:
            return
        if self.request.for_split and settings.model_is_code:
            self.watch(ModelBuilt.of(settings, facts))
        elif facts.samples is not None and facts.samples <= FEW_SAMPLES:
            text = f"{settings.data} has {few_samples_text(facts.samples)}"
            self.watch(Doing(text, stays=True))

    def lose(self, error: GpubalanceError) -> None:
        """Gives the worker up after an error outside of an attempt; raises that of a lost GPU."""
        self.time_limit.check()  # we may have killed the worker ourselves
        if isinstance(error, GpuLost):
            raise error
        is_death = not isinstance(error, OutOfMemory)
        if is_death:
            self.deaths.append(error)
        self.worker_group.drop()
