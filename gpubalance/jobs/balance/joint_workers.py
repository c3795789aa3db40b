"""A balance's devices together: the workers for each split, and what they train with."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence, Set
from dataclasses import dataclass, field

from gpubalance.devices.selection import check_model
from gpubalance.errors import EnvironmentFault, OutOfMemory
from gpubalance.jobs.endings import raise_if_refused
from gpubalance.jobs.events import Doing, ModelBuilt, Watch
from gpubalance.jobs.journal import Journal, content_key
from gpubalance.jobs.measure.measurer import build_for
from gpubalance.results.common import Model
from gpubalance.results.timing import Overhead
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.record import Record
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.settings.settings import Settings
from gpubalance.workers.messages import SumsTimed, TimeSums
from gpubalance.workers.worker_group import WorkerGroup


class PackSize(Record):
    """How many bytes of gradients a set of devices sums in one all-reduce, 0 for all."""

    pack_bytes: int


@dataclass
class JointWorkers:
    """A balance's worker group, regrouped for each split to the devices that have samples in it.

    `model` is the one that was probed, None if unknown. The first worker tells what it found of a
    user's model, unless that is told. `pack_bytes` is by set of devices how they sum gradients:
    what their first worker computed from the link, so that all measurements of a set are alike.
    `probing` is the overhead of a probe that the balance made.
    """

    request: BalanceRequest
    model: Model | None
    worker_group: WorkerGroup
    watch: Watch
    journal: Journal
    model_is_reported: bool = True
    probing: Overhead = field(default_factory=Overhead)
    pack_bytes: dict[tuple[int, ...], int] = field(default_factory=dict)
    _timed_sums: bool = False

    @property
    def overhead(self) -> Overhead:
        """Of the balance's own probe and of all that its worker group did."""
        return self.probing + self.worker_group.overhead

    def gather(self, split: BatchSplit) -> WorkerGroup:
        """The group with the devices that have samples. Raises PlanMismatch for another model.

        On GPUs it is a new one after sums: what NCCL holds for each set of devices stays until the
        process ends, and a batch that fits might not fit beside that.
        """
        if self._timed_sums and not all(one.simulated for one in self.request.devices):
            self.worker_group.end()
        self._timed_sums = False
        return self._gathered(split)

    def _gathered(self, split: BatchSplit) -> WorkerGroup:
        self.worker_group.regroup([self.request.devices[i] for i in split.used])
        if not self.worker_group.alive:
            key = content_key("pack size", *split.used)
            kept = self.journal.load(key, PackSize)
            if kept is not None:
                self.pack_bytes.setdefault(split.used, kept.pack_bytes)
            self.worker_group.rebuild(build_for(self.run_request(split)))
            self.worker_group.start()
            check_model(
                self.model,
                self.worker_group.facts.model,
                what="probe",
                remedy="--fresh probes it again",
            )
            self._report_model()
            if len(split.used) > 1 or split.accumulates:
                raise_if_refused(self.worker_group.facts)
            if self.sums_may_hide(split) and split.used not in self.pack_bytes:
                size = PackSize(pack_bytes=self.worker_group.facts.pack_bytes or 0)
                self.pack_bytes[split.used] = size.pack_bytes
                self.journal.keep(key, size)
        return self.worker_group

    def time_sums(
        self,
        devices: frozenset[int],
        superset: frozenset[int],
        known: Container[frozenset[int]],
    ) -> dict[frozenset[int], float]:
        """The seconds of sums of all gradients over some devices, and over a `superset` of them.

        Those that are `known` are not timed again.
        """
        unknown_sets = [one for one in (devices, superset) if one not in known]

        def timed() -> SumsTimed:
            without = self.labels(superset - devices)
            doing = f"measuring how long summing gradients takes without {without}"
            return self._sums_timed(unknown_sets, sorted(superset), doing)

        key = content_key("sums", str(list(map(sorted, unknown_sets))))
        seconds = self.journal.get_or_make(key, SumsTimed, timed).seconds
        if not seconds:
            # They could not be summed: for all that is known, sync may fall to nothing.
            unknown = {devices: 0.0, superset: math.inf}
            return {one: unknown[one] for one in unknown_sets}
        return dict(zip(unknown_sets, seconds, strict=True))

    def _sums_timed(
        self, sets: Sequence[Set[int]], used: Sequence[int], doing: str
    ) -> SumsTimed:
        batches = [int(number in used) for number in range(len(self.request.devices))]
        worker_group = self._gathered(BatchSplit(tuple(batches)))
        groups = []
        for devices in sets:
            groups.append(tuple(used.index(device) for device in sorted(devices)))
        nbytes = worker_group.facts.model.gradient_bytes
        self.watch(Doing(doing))
        self._timed_sums = True
        try:
            with worker_group.worker() as worker:
                asked = TimeSums(groups=tuple(groups), nbytes=nbytes)
                return worker.ask(asked, SumsTimed)
        except (OutOfMemory, EnvironmentFault):
            return SumsTimed(seconds=())

    def labels(self, devices: Iterable[int]) -> str:
        """The names of these devices, in order."""
        return ", ".join(
            self.request.devices[device].label for device in sorted(devices)
        )

    def sums_may_hide(self, split: BatchSplit) -> bool:
        """Whether devices have some gradients before others, and nobody has said a size of packs.

        A compiled step gives all of them at its end, and so does a device that follows a profile.
        """
        settings = self.request.settings
        if len(split.used) == 1 or settings.xla or settings.pack_bytes is not None:
            return False
        return all(self.request.devices[place].profile is None for place in split.used)

    def _report_model(self) -> None:
        settings = self.request.settings
        facts = self.worker_group.facts
        if not self.model_is_reported and settings.model_is_code:
            self.watch(ModelBuilt.of(settings, facts))
        self.model_is_reported = True

    def sum_in_packs(self, split: BatchSplit, pack_bytes: int) -> None:
        """Goes on with workers that sum the gradients of these devices in packs of that size."""
        self.pack_bytes[split.used] = pack_bytes
        if self.worker_group.alive and self.worker_group.facts.pack_bytes != pack_bytes:
            self.worker_group.end()

    def settings_for(self, split: BatchSplit) -> Settings:
        """The settings that its devices train with."""
        size = self.pack_bytes.get(split.used)
        if size is None:
            return self.request.settings
        return self.request.settings.model_copy(update={"pack_bytes": size})

    def run_request(self, split: BatchSplit) -> RunRequest:
        """What a run of that split would be asked for."""
        return RunRequest(
            devices=self.request.devices,
            driver=self.request.driver,
            split=split,
            settings=self.settings_for(split),
            joint=self.request.joint,
            measuring=self.request.measuring,
        )
