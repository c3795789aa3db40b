"""The solver's problem, from a probe and a request, and the best split that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.keep.saved import find_device, holds_nothing
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.allocate import allocate, allocated
from gpubalance.planning.memory import joint_bytes, joint_limit
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.noise import goodput
from gpubalance.planning.packs import MOST_BYTES
from gpubalance.planning.problem import (
    Allocation,
    Load,
    NoSplitError,
    Problem,
    TooFineError,
    throughput,
)
from gpubalance.results.probe import DeviceProbe, Probe
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings

# The most that the update may be of a step's fixed cost. The cost includes it but may be fitted as
# less, and some compute must be left.
_MOST_UPDATE = 0.99
# The micro-batches of `--accumulate auto`, and the part of throughput that more micro-batches must
# gain, under `auto` and when asked for: a larger global batch costs learning progress that
# throughput does not show.
AUTO_MICRO_BATCHES = 8
AUTO_WITHIN, _WITHIN = 0.05, 0.01


def check_asked(request: ProbeRequest | BalanceRequest) -> None:
    """Raises UsageError, or NothingFits for the margin, if no probe of the devices could make it
    possible.
    """
    margin_bytes = (
        request.margin_bytes if isinstance(request, ProbeRequest) else request.plan.margin_bytes
    )
    memory = [device.memory_bytes for device in request.devices]
    known = [size for size in memory if size is not None]
    if margin_bytes and len(known) == len(memory) and margin_bytes >= max(known):
        kept, has = format_bytes(margin_bytes), format_bytes(max(known))
        raise NothingFits(
            f"no device can keep {kept} free: the largest has {has}", remedy="a smaller --margin"
        )
    if isinstance(request, ProbeRequest):
        return
    asked, multiple = request.plan, request.probe.batch_multiple
    wanted, most = asked.global_batch, asked.max_global_batch
    # One device with room for all shows what is possible.
    load = Load(Line(1.0, 0.0, 0.0), max(wanted or 0, most or 0) + multiple)
    best_split(Problem((load,), multiple=multiple, global_batch=wanted, max_global_batch=most))


def find_probes(probe: Probe, devices: Sequence[Device]) -> tuple[DeviceProbe, ...]:
    """The probe's entry for each device. Raises BadInput for a device that it lacks, or did not
    finish.
    """
    found = []
    for device in devices:
        one = find_device(probe, device)
        if one is None:
            raise BadInput(
                f"the probe has no {device.label} ({device.name})",
                remedy="gpubalance probe measures it",
            )
        # A device on which nothing fits has a limit but no step time: it gets no samples.
        if one.batch_limit is None or (one.batch_limit.fits is not None and _model(one) is None):
            raise BadInput(
                f"the probe of {device.label} ({device.name}) ended before its batch limit "
                "and step time were known",
                remedy="gpubalance probe --resume",
            )
        found.append(one)
    return tuple(found)


def _load(one: DeviceProbe, extra_bytes: int, multiple: int, host: int) -> Load:
    limit, model = one.batch_limit, _model(one)
    if limit is None or limit.fits is None or model is None:
        return Load(Line(1.0, 0.0, 0.0), 0, host=host)
    points = [(p.batch, p.memory_peak_bytes) for p in one.curve if p.memory_peak_bytes is not None]
    largest = joint_limit(
        sorted(points), limit.fits, memory_bytes=limit.memory_bytes, extra_bytes=extra_bytes
    )
    update_s = min(one.update_s or 0.0, _MOST_UPDATE * model.step_time_s(0))
    return Load(model.less(update_s), largest // multiple * multiple, update_s, host)


def _model(one: DeviceProbe) -> Line | Curve | None:
    """A device's step time by batch, None if none was measured; a curve of one point if only one
    size was.
    """
    if one.step_time_model is not None:
        return one.step_time_model.planned
    return Curve((one.curve[0].batch,), (one.curve[0].step_time_s.median,)) if one.curve else None


def problem_of(probe: Probe, probes: Sequence[DeviceProbe], request: PlanRequest) -> Problem:
    """The solver's problem for this request, without sync. Raises NothingFits if the probe looked
    at no batch so large.

    A load is a device's compute, update, and batch limit less the margin and the memory that a
    joint run takes.
    """
    multiple, most_probed = request.batch_multiple or probe.batch_multiple, probe.max_batch
    if most_probed is not None and most_probed < multiple:
        raise NothingFits(
            f"the probe of {probe.created} looked no further than --max-batch {most_probed}, "
            "and batches are multiples "
            f"of {multiple}",
            remedy="gpubalance probe without --max-batch, or a smaller --batch-multiple",
        )
    asked = request.accumulate
    most, within = (AUTO_MICRO_BATCHES, AUTO_WITHIN) if asked == "auto" else (asked, _WITHIN)
    extra, hosts = request.margin_bytes, hosts_of(probe.devices)
    if probe.model is not None:
        together = sum(not holds_nothing(one) for one in probes)
        extra += joint_bytes(probe.model.gradient_bytes, together, _most_pack_bytes(probe.settings))
    return Problem(
        loads=tuple(
            _load(one, extra, multiple, hosts.index(probe.devices[one.device].host))
            for one in probes
        ),
        multiple=multiple,
        global_batch=request.global_batch,
        max_global_batch=request.max_global_batch,
        micro_batches=most,
        within=within,
        objective=throughput if request.noise_scale is None else goodput(request.noise_scale),
    )


def _most_pack_bytes(settings: Settings) -> int:
    """The largest packs in which gradients may be summed; 0 if they are summed all at once."""
    if settings.xla:
        return 0
    return MOST_BYTES if settings.pack_bytes is None else settings.pack_bytes


def best_split(problem: Problem) -> Allocation:
    """The solver's best split.

    Raises UsageError, with the nearest possible global batches, if no split is as asked for, and
    NothingFits if no device has room for a batch.
    """
    if not any(load.limit >= problem.multiple for load in problem.loads):
        raise NothingFits(
            f"no device has room for a batch of {problem.multiple} beside what a joint run takes",
            remedy="a smaller --batch-multiple or --margin, or a smaller model",
        )
    try:
        return allocate(problem)
    except NoSplitError as error:
        nearest = [batch for batch in (error.below, error.above) if batch is not None]
        remedies = (
            [f"the nearest that is possible: {' or '.join(map(str, nearest))}"] if nearest else []
        )
        if error.above is None and allocated(replace(problem, micro_batches=AUTO_MICRO_BATCHES)):
            remedies.append("--accumulate auto does it, in micro-batches")
        raise UsageError(_why_not(problem, error), remedy="; or ".join(remedies)) from None
    except TooFineError as error:
        remedy = (
            "a larger --batch-multiple, fewer micro-batches with --accumulate, or a "
            "--max-global-batch"
        )
        raise UsageError(str(error), remedy=remedy) from None


def _why_not(problem: Problem, error: NoSplitError) -> str:
    """Why no split has the global batch that is asked for."""
    wanted = problem.global_batch
    if wanted is None or problem.max_global_batch is not None:
        return str(error)
    if error.above is None and error.below is not None:
        return f"a global batch of {wanted:,} is too large: at most {error.below:,} fit"
    if wanted % problem.multiple:
        return (
            f"a global batch of {wanted:,} is no multiple of {problem.multiple} (--batch-multiple)"
        )
    return str(error)
