"""What a section of a report is about: a result, and the probe of its devices if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubalance.results.common import Warning_
from gpubalance.results.independent import Independent, OwnModel
from gpubalance.results.layers import Layers, Stage
from gpubalance.results.plan import Plan
from gpubalance.results.probe import DeviceProbe
from gpubalance.results.records import Reported
from gpubalance.results.run import Replica, Run
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.device import Device


@dataclass(frozen=True)
class ReportSubject:
    """The result of a file, `name`, and a probe for each device, None if none was found.

    `probe_from` says where the probe comes from; it is empty without one.
    """

    name: str
    result: Reported
    probes: tuple[DeviceProbe | None, ...]
    probe_from: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The result's devices, to whose places its device numbers refer."""
        return self.result.devices

    def label(self, device: int) -> str:
        """`GPU:0`, for a device's place among the result's."""
        return self.result.label(device)

    @property
    def plan(self) -> Plan | None:
        """The result if it is a plan."""
        return self.result if isinstance(self.result, Plan) else None

    @property
    def run(self) -> Run | None:
        """The result if it is a run, or the run at the end of `balance`."""
        if isinstance(self.result, Plan):
            return self.result.run
        return self.result if isinstance(self.result, Run) else None

    @property
    def ran(self) -> Sequence[Replica | OwnModel | Stage]:
        """What each device did in what was run; empty for a probe and a plan that was not run."""
        if isinstance(self.result, Layers):
            return self.result.stages
        ran = self.result if isinstance(self.result, Independent) else self.run
        return ran.replicas if ran is not None else ()

    @property
    def kind(self) -> str:
        """The kind of the result, as in its file."""
        return self.result.kind

    @property
    def probed(self) -> bool:
        """Whether any device was measured alone."""
        return any(probe is not None and probe.curve for probe in self.probes)

    @property
    def is_of_table(self) -> bool:
        """Whether its devices are cards of a table of step times, of which no probe exists."""
        return all(device.is_of_table for device in self.devices)

    @property
    def split(self) -> BatchSplit | None:
        """The split of a run or a plan, else None."""
        if isinstance(self.result, Plan | Run):
            return self.result.split
        return None


def warnings_of(result: Reported) -> tuple[Warning_, ...]:
    """The warnings of the result and, before them, of the run that proved it."""
    if isinstance(result, Plan) and result.run:
        return result.run.warnings + result.warnings
    return result.warnings
