"""The split that a probe suggests to try."""

from __future__ import annotations

from gpubalance.planning.allocate import allocate
from gpubalance.planning.fleet import Load
from gpubalance.planning.model import Curve, Line
from gpubalance.planning.problem import Problem
from gpubalance.results.probe import DeviceProbe, Probe, StepTimeModel

# A joint run takes more memory than a device alone: all-reduce buffers, and a second copy of the gradients.
_LEFT_BY_A_JOINT_RUN = 0.9


def suggested_split(probe: Probe) -> tuple[int, ...] | None:
    """A batch for each of the probe's devices, 0 for one that would only hold the others up; a guess at first.

    The best split by the step-time models for no sync, within nine tenths of the batch limits where there are several
    devices. None where a device was not measured far enough.
    """
    if not probe.complete:
        return None
    if len(probe.probes) == 1:
        best = probe.probes[0].solo_best
        return (best.batch,) if best else None
    loads = [_load(one, probe.batch_multiple) for one in probe.probes]
    known = tuple(load for load in loads if load is not None)
    if len(known) < len(loads) or not any(load.limit for load in known):
        return None
    return allocate(Problem(known, multiple=probe.batch_multiple)).batches


def _load(one: DeviceProbe, multiple: int) -> Load | None:
    if one.step_time_model is None or one.batch_limit is None or one.batch_limit.fits is None:
        return None
    limit = int(one.batch_limit.fits * _LEFT_BY_A_JOINT_RUN) // multiple * multiple
    return Load(_model(one.step_time_model), limit)


def _model(model: StepTimeModel) -> Line | Curve:
    if model.curve is None:
        return Line(model.alpha_s, model.beta_s, model.residual)
    batches, times = zip(*model.curve, strict=True)
    return Curve(tuple(batches), tuple(times))
