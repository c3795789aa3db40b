"""Measures a balance's devices together, a split for a moment."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.devices.planned import check_model
from gpubalance.jobs.endings import raise_if_refused
from gpubalance.jobs.events import ModelBuilt, Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.measure.measurement import measurement
from gpubalance.jobs.measure.measurer import Measurer
from gpubalance.jobs.measure.party import build_for
from gpubalance.jobs.measure.stopping import StoppingRule
from gpubalance.jobs.measure.subject import Subject
from gpubalance.results.common import Model
from gpubalance.results.run import Measurement
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.settings.requests import BalanceRequest, RunRequest
from gpubalance.workers.party import Party


@dataclass
class Together:
    """A balance's party, regrouped for each split to the devices that have samples in it.

    `model` is the one that was probed, None if unknown. The first worker tells what it found of a
    user's model, unless that is told.
    """

    request: BalanceRequest
    model: Model | None
    party: Party
    watch: Watch
    journal: Journal
    model_is_told: bool = True

    def gather(self, split: BatchSplit) -> Party:
        """The party, with the devices that have samples. Raises PlanMismatch for another model."""
        self.party.regroup([self.request.devices[i] for i in split.used])
        if not self.party.alive:
            self.party.start()
            check_model(
                self.model,
                self.party.facts.model,
                what="probe",
                remedy="--fresh probes it again",
            )
            self._tell_of_model()
            if len(split.used) > 1 or split.accumulates:
                raise_if_refused(self.party.facts)
        return self.party

    def _tell_of_model(self) -> None:
        settings = self.request.settings
        facts = self.party.facts
        if not self.model_is_told and settings.model_is_code:
            self.watch(
                ModelBuilt(settings, facts.model, facts.own_batch, facts.verdict.warned)
            )
        self.model_is_told = True

    def measure(self, split: BatchSplit, at_least_s: float | None) -> Measurement:
        """What a split gives, measured for so long; if None, until it is known within ± 1 %."""
        used = self.run_request(split).without_idle
        measurer = Measurer(self.gather(split), self.journal, self.watch)
        subject = Subject(used.split, used.devices, least_samples=split.global_batch)
        window = measurer.measure(subject, StoppingRule.of_round(at_least_s))
        sensors = measurer.sensors(subject)
        return measurement(used.split, [window], sensors, used_places=split.used)

    def sum_in_packs(self, pack_bytes: int) -> None:
        """Goes on with workers that sum gradients in packs of that size."""
        settings = self.request.settings.model_copy(update={"pack_bytes": pack_bytes})
        self.request = self.request.model_copy(update={"settings": settings})
        keep_workers = self.party.alive and self.party.facts.pack_bytes == pack_bytes
        self.party.rebuild(build_for(self.request), keep_workers=keep_workers)

    def run_request(self, split: BatchSplit) -> RunRequest:
        """What a run of that split would be asked for."""
        return RunRequest(
            devices=self.request.devices,
            driver=self.request.driver,
            split=split,
            settings=self.request.settings,
            joint=self.request.joint,
            measuring=self.request.measuring,
        )
