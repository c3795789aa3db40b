"""The devices of a probe: which of them are measured, and which at the same time."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from functools import partial
from itertools import pairwise

from gpubalance.devices.hosts import are_reached
from gpubalance.devices.selection import first_equal
from gpubalance.jobs.events import Watch, one_at_a_time
from gpubalance.jobs.journal import Journal
from gpubalance.jobs.probe.probe_worker import ProbeWorker
from gpubalance.jobs.probe.probed_device import ProbedDevice, device_probe, taken_over
from gpubalance.jobs.probe.time_left import QueuesLeft
from gpubalance.jobs.saved import KeptRules
from gpubalance.results.common import Warning_
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.run import InputPipeline
from gpubalance.settings.code import code_key
from gpubalance.settings.requests import ProbeRequest
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.worker_group import WorkerGroup


class ProbedDevices:
    """A request's devices, each with a worker of its own, and their input pipeline.

    `next_group` is the worker group that measures after them, if any. The caller must `end` the
    workers.
    """

    def __init__(
        self,
        request: ProbeRequest,
        journal: Journal,
        limit: TimeLimit,
        watch: Watch,
        next_group: WorkerGroup | None,
    ) -> None:
        self.request = request
        self.next_group = next_group
        # An interrupt ends it for the threads, not for the caller.
        self.limit = copy(limit)
        # Now, before the user changes the file.
        self.code = code_key(request.settings.model, request.settings.data)
        self.watch = one_at_a_time(watch)
        journal.watch = self.watch
        self.pipeline: InputPipeline | None = None
        self.pipeline_warnings: list[Warning_] = []
        kept_rules = KeptRules(journal) if next_group is None else next_group.kept_rules
        self.all: list[ProbedDevice] = []
        self.left = QueuesLeft(queues(request), set(stand_ins(request)), self.watch)
        for number, device in enumerate(request.devices):
            report_left = partial(self.left.report, number)
            probe_worker = ProbeWorker(
                device,
                request,
                journal,
                kept_rules,
                self.limit,
                self.watch,
                report_left,
            )
            self.all.append(ProbedDevice(number, probe_worker))
        self._stand_ins = [self.all[number] for number in stand_ins(request)]
        self.queues: list[list[ProbedDevice]] = []
        for numbers in queues(request):
            self.queues.append([self.all[number] for number in numbers])
        self._load_ahead()

    def _load_ahead(self) -> None:
        """Says whose group loads TensorFlow while a device is measured: that of what follows it."""
        for queue in self.queues:
            measured = [probed for probed in queue if self.stand_in(probed) is probed]
            for probed, after in pairwise(measured):
                probed.probe_worker.next_group = after.probe_worker.worker_group
            if len(self.queues) == 1 and not self.request.parallel:
                measured[-1].probe_worker.next_group = self.next_group

    def stand_in(self, probed: ProbedDevice) -> ProbedDevice:
        """The device that is probed for this one: itself, or an equal one before it."""
        return self._stand_ins[probed.number]

    def records(self) -> tuple[DeviceProbe, ...]:
        """What was found of each device so far, itself or by one that equals it."""
        records = []
        for probed in self.all:
            equal = self.stand_in(probed)
            if probed.began:
                records.append(device_probe(probed))
            elif equal.ended:
                records.append(taken_over(probed, equal))
        return tuple(records)

    def end(self) -> None:
        """Ends all workers."""
        for probed in self.all:
            probed.probe_worker.worker_group.end()

    def kill(self) -> None:
        """Ends all workers at once, and what waits for them."""
        self.limit.end()
        for probed in self.all:
            probed.probe_worker.worker_group.kill()


def stand_ins(request: ProbeRequest) -> list[int]:
    """The number of the device that is probed for each: its own, or an equal one's before it."""
    if request.each:
        return list(range(len(request.devices)))
    return first_equal(request.devices)


def queues(request: ProbeRequest) -> list[list[int]]:
    """Queues of device numbers: those in a queue take turns, the queues are at the same time.

    One queue in all, or one for each device if that is asked for, or one for each host if each is
    its own machine. A device that is not probed follows the one that is probed for it.
    """
    keys: list[object] = [None] * len(request.devices)
    if request.parallel:
        keys = [*stand_ins(request)]
    elif are_reached():
        keys = [device.host for device in request.devices]
    found = defaultdict[object, list[int]](list)
    for number, key in enumerate(keys):
        found[key].append(number)
    return list(found.values())


def phase_names(request: ProbeRequest) -> list[str]:
    """The phase of each device: its own or its stand-in's, or one for all with several queues."""
    count = len(request.devices)
    if request.parallel:
        return ["all devices at once"] * count
    if len(queues(request)) > 1:
        return ["all hosts at once"] * count
    return [f"{request.devices[number].label} alone" for number in stand_ins(request)]
