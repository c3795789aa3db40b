"""The solver's problem, from a probe and a request, and the best split that answers it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpubalance.errors import BadInput, NothingFits, UsageError
from gpubalance.jobs.saved import find_device, holds_nothing
from gpubalance.numbers.units import format_bytes
from gpubalance.planning.allocate import (
    allocate,
    allocate_or_none,
    as_measured,
    smallest_on_plateau,
)
from gpubalance.planning.memory import joint_bytes, joint_limit
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.noise import goodput
from gpubalance.planning.problem import (
    Allocation,
    Load,
    NoSplitError,
    Problem,
    TooFineError,
)
from gpubalance.planning.sync import MAX_PACK_BYTES
from gpubalance.results.probe import DeviceProbe, Probe, peaks_by_batch
from gpubalance.settings.device import Device, hosts_of
from gpubalance.settings.measuring import (
    Margin,
    margin_on,
    margin_text,
    refuse_unknown,
    too_few_samples,
)
from gpubalance.settings.planning import PlanRequest
from gpubalance.settings.requests import BalanceRequest, ProbeRequest
from gpubalance.settings.settings import Settings

# The most that the update may be of a step's fixed cost. The cost includes it but may be fitted as
# less, and some compute must be left.
_MOST_UPDATE = 0.99
# The micro-batches of `--accumulate auto`, and the fraction of the value that more micro-batches
# must gain, under `auto` and when asked for: a larger global batch costs learning progress that
# throughput does not show.
AUTO_MICRO_BATCHES = 8
AUTO_TOLERANCE = 0.05
_TOLERANCE = 0.01


def check_asked(request: ProbeRequest | BalanceRequest) -> None:
    """Raises UsageError, or NothingFits for the margin, if no probe could make it possible."""
    if isinstance(request, ProbeRequest):
        _check_margin(request.margin_bytes, request.devices)
        return
    _check_margin(request.plan.margin_bytes, request.devices)
    multiple = request.probe.batch_multiple
    wanted = request.plan.global_batch
    maximum = request.plan.max_global_batch
    # One device with room for all shows what is possible.
    load = Load(Line(1.0, 0.0, 0.0), max(wanted or 0, maximum or 0) + multiple)
    best_split(
        Problem(
            (load,), multiple=multiple, global_batch=wanted, max_global_batch=maximum
        )
    )


def _check_margin(margin: Margin, devices: Sequence[Device]) -> None:
    sizes = []
    for device in devices:
        size = device.memory_bytes
        kept_free = margin_on(device, margin)
        if not kept_free or size is None or kept_free < size:
            return
        sizes.append(size)
    if sizes:
        raise NothingFits(
            f"no device can keep {margin_text(margin)} free: the largest has "
            f"{format_bytes(max(sizes))}",
            remedy="a smaller --margin",
        )


def find_probes(probe: Probe, devices: Sequence[Device]) -> tuple[DeviceProbe, ...]:
    """The probe's entry for each device. Raises BadInput for one it lacks or did not finish."""
    entries = []
    for device in devices:
        entry = find_device(probe, device)
        if entry is None:
            raise BadInput(
                f"the probe has no {device.label} ({device.name})",
                remedy="measure it: gpubalance probe",
            )
        limit = entry.batch_limit
        # A device on which nothing fits has a limit but no step time: it gets no samples.
        if limit is None or (limit.fits is not None and _model(entry) is None):
            raise BadInput(
                f"the probe of {device.label} ({device.name}) ended before its batch limit "
                "and step time were known",
                remedy="gpubalance probe --resume",
            )
        entries.append(entry)
    return tuple(entries)


def _load(entry: DeviceProbe, extra_bytes: int, multiple: int, host: int) -> Load:
    limit = entry.batch_limit
    model = _model(entry)
    if limit is None or limit.fits is None or model is None:
        return Load(Line(1.0, 0.0, 0.0), 0, host=host)
    largest = joint_limit(
        peaks_by_batch(entry.curve),
        limit.fits,
        memory_bytes=limit.memory_bytes,
        extra_bytes=extra_bytes,
    )
    update_s = min(entry.update_s or 0.0, _MOST_UPDATE * model.step_time_s(0))
    return Load(model.less(update_s), largest // multiple * multiple, update_s, host)


def _model(entry: DeviceProbe) -> Line | Curve | None:
    """A device's step time by batch, None if none was measured.

    If only one size was measured it is a curve of one point.
    """
    if entry.step_time_model is not None:
        return entry.step_time_model.planned
    if not entry.curve:
        return None
    point = entry.curve[0]
    return Curve((point.batch,), (point.step_time_s.median,))


def problem_of(
    probe: Probe,
    probes: Sequence[DeviceProbe],
    devices: Sequence[Device],
    request: PlanRequest,
) -> Problem:
    """The solver's problem for this request on these devices, without sync.

    `probes` has the probe's entry of each device. A load is a device's compute, update, and batch
    limit less its margin and the memory that a joint run takes. Raises UsageError for a margin of
    another device, NothingFits if the probe looked at no batch so large, and BadInput for data with
    fewer samples than the global batch.
    """
    multiple = request.batch_multiple or probe.batch_multiple
    if probe.max_batch is not None and probe.max_batch < multiple:
        raise NothingFits(
            f"the probe of {probe.created} stopped at --max-batch {probe.max_batch}, "
            f"but batches are multiples of {multiple}",
            remedy="probe without --max-batch, or use a smaller --batch-multiple",
        )
    refuse_unknown(request.margin_bytes, devices)
    extra_bytes = 0
    if probe.model is not None:
        together = sum(not holds_nothing(entry) for entry in probes)
        pack_bytes = _max_pack_bytes(probe.settings)
        extra_bytes = joint_bytes(probe.model.gradient_bytes, together, pack_bytes)
    hosts = hosts_of(probe.devices)
    loads = []
    for entry, device in zip(probes, devices, strict=True):
        kept_free = extra_bytes + margin_on(device, request.margin_bytes)
        host = hosts.index(probe.devices[entry.device].host)
        loads.append(_load(entry, kept_free, multiple, host))
    problem = Problem(
        loads=tuple(loads),
        multiple=multiple,
        global_batch=request.global_batch,
        max_global_batch=_max_samples(probe, request),
    )
    if request.noise_scale is not None:
        problem = replace(problem, objective=goodput(request.noise_scale))
    if request.accumulate == "auto":
        return replace(
            problem,
            micro_batches=AUTO_MICRO_BATCHES,
            micro_batch_tolerance=AUTO_TOLERANCE,
        )
    return replace(
        problem, micro_batches=request.accumulate, micro_batch_tolerance=_TOLERANCE
    )


def _max_samples(probe: Probe, request: PlanRequest) -> int | None:
    """The largest global batch that is asked for, or that the user's data has samples for.

    Raises BadInput if it has fewer than the global batch that is asked for.
    """
    if probe.samples is not None and (request.global_batch or 0) > probe.samples:
        where = f"--data {probe.settings.data}"
        raise too_few_samples(where, probe.samples, request.global_batch or 0)
    sizes = [
        size for size in (request.max_global_batch, probe.samples) if size is not None
    ]
    return min(sizes, default=None)


def _max_pack_bytes(settings: Settings) -> int:
    """The largest packs in which gradients may be summed; 0 if they are summed all at once."""
    if settings.xla:
        return 0
    return MAX_PACK_BYTES if settings.pack_bytes is None else settings.pack_bytes


def best_split(problem: Problem) -> Allocation:
    """The solver's best split, or one of half its global batch or less that is worth as much.

    Raises UsageError, with the nearest possible global batches, if no split is as asked for, and
    NothingFits if no device has room for a batch.
    """
    if not any(load.limit >= problem.multiple for load in problem.loads):
        raise NothingFits(
            f"no device has enough memory for a batch of {problem.multiple} when all "
            "devices train together",
            remedy="use a smaller --batch-multiple, --margin or model",
        )
    try:
        best = as_measured(problem, allocate(problem))
        return smallest_on_plateau(problem, best)
    except NoSplitError as error:
        remedies = []
        nearest = [
            str(batch) for batch in (error.below, error.above) if batch is not None
        ]
        wanted = problem.global_batch
        if wanted and wanted % problem.multiple and problem.max_global_batch is None:
            finer = math.gcd(wanted, problem.multiple)
            if allocate_or_none(replace(problem, multiple=finer)):
                remedies.append(f"--batch-multiple {finer} allows it")
        if nearest:
            remedies.append(f"the nearest that is possible: {' or '.join(nearest)}")
        if error.above is None and allocate_or_none(
            replace(problem, micro_batches=AUTO_MICRO_BATCHES)
        ):
            remedies.append("--accumulate auto reaches it with micro-batches")
        raise UsageError(
            _why_not(problem, error), remedy="; or ".join(remedies)
        ) from None
    except TooFineError as error:
        raise UsageError(
            str(error),
            remedy="use a larger --batch-multiple, fewer micro-batches "
            "(--accumulate), or --max-global-batch",
        ) from None


def _why_not(problem: Problem, error: NoSplitError) -> str:
    """Why no split has the global batch that is asked for."""
    wanted = problem.global_batch
    if wanted is None or problem.max_global_batch is not None:
        return str(error)
    if error.above is None and error.below is not None:
        return f"a global batch of {wanted:,} is too large: at most {error.below:,} fit"
    if wanted % problem.multiple:
        multiple = f"{problem.multiple} (--batch-multiple)"
        return f"a global batch of {wanted:,} is not a multiple of {multiple}"
    return str(error)
