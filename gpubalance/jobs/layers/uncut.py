"""Finds out whether the whole model trains on one device, what that gives, and what its batch split would give."""

from __future__ import annotations

from dataclasses import dataclass

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.balance.found import plan_by_all_known
from gpubalance.jobs.balance.probing import probe_for
from gpubalance.jobs.events import Watch
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.once import Once
from gpubalance.numbers.units import format_percent, format_rate
from gpubalance.planning.pipeline.timeline import bubble_bound, pipeline_throughput
from gpubalance.results.layers import LayersBaselines, SplitBaseline
from gpubalance.results.run import SoloBest
from gpubalance.settings.requests import LayersRequest
from gpubalance.system.deadlines import TimeLimit

_NONE_HOLDS = "no device holds the whole model"


@dataclass(frozen=True)
class Uncut:
    """The best of each device that holds the model, and the batch split over them, or why there is none."""

    solo: tuple[SoloBest, ...] = ()
    split: SplitBaseline | None = None
    solo_why_not: str | None = None
    split_why_not: str | None = None

    @property
    def best(self) -> SoloBest | None:
        """The fastest single device."""
        return max(self.solo, key=lambda one: one.throughput, default=None)

    @property
    def throughput(self) -> float:
        """The most samples per second of the uncut model; 0 if it can't be trained uncut."""
        return max(one.throughput if one else 0.0 for one in (self.best, self.split))

    @property
    def baselines(self) -> LayersBaselines:
        """What a cut is compared with."""
        why_not = {"solo_best_why_not": self.solo_why_not, "split_why_not": self.split_why_not}
        return LayersBaselines(solo_best=self.best, split=self.split, **why_not)


def uncut(request: LayersRequest, driver: str | None, limit: TimeLimit, watch: Watch, journal: Journal | None) -> Uncut:
    """What the uncut model gives, by a probe and a balance that used it. Raises what a probe does, but NothingFits."""
    try:
        probe = probe_for(request.uncut, driver, limit, watch, journal, Once(journal, watch))
    except NothingFits as error:
        return Uncut(solo_why_not=error.message, split_why_not=_NONE_HOLDS)
    bests = [(one.device, one.solo_best) for one in probe.probes if one.solo_best is not None]
    solo = tuple(SoloBest(device=device, **best.model_dump()) for device, best in bests)
    if not solo:
        told = (failure.message for one in probe.probes for failure in one.failures)
        return Uncut(solo_why_not="; ".join(dict.fromkeys(told)) or _NONE_HOLDS, split_why_not=_NONE_HOLDS)
    missing = [device.label for number, device in enumerate(request.devices) if number not in dict(bests)]
    if missing:
        do_not = "do not" if len(missing) > 1 else "does not"
        return Uncut(solo, split_why_not=f"{' and '.join(missing)} {do_not} hold the whole model")
    try:
        planned = plan_by_all_known(probe, request.devices, request.uncut.plan, request.joint)
    except (NothingFits, BadInput, UsageError) as error:
        return Uncut(solo, split_why_not=error.message)
    sizes = {"batches": planned.batches, "micro_batches": planned.micro_batches}
    return Uncut(solo, SplitBaseline(**sizes, throughput=planned.predicted.throughput, measured=False))


def refuse_what_is_faster_uncut(request: LayersRequest, found: Uncut, layers_at_most: float | None = None) -> None:
    """Raises UsageError if layers can't give more than the uncut model, unless they are forced.

    `layers_at_most` comes from the best cut; without it, it is computed from the devices alone if all hold the model.
    """
    if request.force or not found.throughput:
        return
    if layers_at_most is None:
        if len(found.solo) < len(request.devices):
            return
        layers_at_most = pipeline_throughput([one.throughput for one in found.solo], request.in_a_step)
    if layers_at_most > found.throughput:
        return
    bubble = format_percent(bubble_bound(len(request.devices), request.in_a_step), 1)
    best, split = found.best, found.split
    told = []
    if best is not None:
        told.append(f"{request.devices[best.device].label} alone gives {format_rate(best.throughput)}")
    if split is not None:
        told.append(f"the batch split {split.split} {format_rate(split.throughput)} by prediction")
    parts = " --accumulate auto" if split is not None and split.split.accumulates else ""
    raise UsageError(
        f"{request.settings.model} is better off uncut: layers would give {format_rate(layers_at_most)} samples/s at "
        f"best, as {bubble} of each step is bubble; {', '.join(told)}",
        remedy=f"gpubalance balance{parts} finds the best batch split; --force cuts the model all the same",
    )
