"""The devices of a probe: which of them are probed themselves, and what was found so far."""

from __future__ import annotations

from copy import copy
from itertools import pairwise

from gpubalance.jobs.events import Watch, one_at_a_time
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.verdicts import KeptVerdicts
from gpubalance.jobs.probe.alone import Alone
from gpubalance.jobs.probe.bench import Bench
from gpubalance.jobs.probe.device_probe import device_probe, taken_over
from gpubalance.jobs.probe.order import queues, stand_ins
from gpubalance.results.common import Warning_
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.run import InputPipeline
from gpubalance.settings.code import code_key
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


class ProbedDevices:
    """A request's devices, each on a bench of its own, and their input pipeline.

    `following` is the party that measures after them, if any. The caller must `end` the workers.
    """

    def __init__(
        self,
        request: ProbeRequest,
        journal: Journal,
        limit: TimeLimit,
        watch: Watch,
        following: Party | None,
    ) -> None:
        self.request = request
        self.following = following
        # An interrupt ends it for the threads, not for the caller.
        self.limit = copy(limit)
        # Now, before the user changes the file.
        self.code = code_key(request.settings.model, request.settings.data)
        self.watch = one_at_a_time(watch)
        journal.watch = self.watch
        self.pipeline: InputPipeline | None = None
        self.pipeline_warnings: list[Warning_] = []
        verdicts = KeptVerdicts(journal) if following is None else following.verdicts
        self.all: list[Alone] = []
        for number, device in enumerate(request.devices):
            bench = Bench(device, request, journal, verdicts, self.limit, self.watch)
            self.all.append(Alone(number, bench))
        self._stand_ins = [self.all[number] for number in stand_ins(request)]
        self.queues: list[list[Alone]] = []
        for numbers in queues(request):
            self.queues.append([self.all[number] for number in numbers])
        self._load_ahead()

    def _load_ahead(self) -> None:
        """Says whose party loads TensorFlow while a device is measured: that of what follows it."""
        for queue in self.queues:
            probed = [alone for alone in queue if self.stand_in(alone) is alone]
            for alone, then in pairwise(probed):
                alone.bench.following = then.bench.party
            if len(self.queues) == 1 and not self.request.parallel:
                probed[-1].bench.following = self.following

    def stand_in(self, alone: Alone) -> Alone:
        """The device that is probed for this one: itself, or an equal one before it."""
        return self._stand_ins[alone.number]

    def records(self) -> tuple[DeviceProbe, ...]:
        """What was found of each device so far, itself or by one that equals it."""
        records = []
        for alone in self.all:
            equal = self.stand_in(alone)
            if alone.began:
                records.append(device_probe(alone))
            elif equal.ended:
                records.append(taken_over(alone, equal))
        return tuple(records)

    def end(self) -> None:
        """Ends all workers."""
        for alone in self.all:
            alone.bench.party.end()

    def kill(self) -> None:
        """Ends all workers at once, and what waits for them."""
        self.limit.end()
        for alone in self.all:
            alone.bench.party.kill()
