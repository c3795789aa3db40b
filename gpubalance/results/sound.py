"""Whether a result's parts fit each other: what its records, each by itself, cannot tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpubalance.errors import BadInput
from gpubalance.results.plan import Plan
from gpubalance.results.probe import Probe
from gpubalance.results.run import Measurement, Run

_LARGEST = 10**18  # of anything in a result, in its unit (FLOP/s are the most): what is beyond was never measured


def check_sound(path: Path, result: Probe | Plan | Run) -> None:
    """Raises BadInput with the first field of a file's result that can't be of a measurement."""
    found = next(_faults(result), None)
    if found is not None:
        raise BadInput(f"{path} is damaged: {found}", remedy=f"make the {result.kind} again")


def _faults(result: Probe | Plan | Run) -> Iterator[str]:
    yield from _too_large(result.model_dump(), "")
    if not result.devices:
        yield "devices: there is none"
    if isinstance(result, Probe):
        yield from _of_probe(result)
    elif isinstance(result, Plan):
        yield from _of_plan(result)
    else:
        yield from _of_run(result, "")


def _too_large(value: object, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _too_large(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _too_large(inner, f"{where}.{number}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > _LARGEST:
        yield f"{where}: more than anything can be"


def _of_probe(probe: Probe) -> Iterator[str]:
    yield from _devices([one.device for one in probe.probes], len(probe.devices), "probes")
    for number, one in enumerate(probe.probes):
        for place, point in enumerate(one.curve):
            times = [point.step_time_s.median, point.throughput.median, float(point.batch)]
            yield from _above_zero(times, f"probes.{number}.curve.{place}")
        if one.batch_limit is not None:
            yield from _above_zero([t.batch for t in one.batch_limit.trials], f"probes.{number}.batch_limit.trials")
        model = one.step_time_model
        if model is not None and model.planned_with == "curve" and not model.curve:
            yield f"probes.{number}.step_time_model.curve: there is none"


def _of_plan(plan: Plan) -> Iterator[str]:
    count = len(plan.devices)
    if len({device.uuid for device in plan.devices}) < count:
        yield "devices: two have the same UUID"
    yield from _lengths({"batches": plan.batches, "micro_batches": plan.micro_batches, "shares": plan.shares}, count)
    yield from _micro_batches(plan.batches, plan.micro_batches)
    if plan.global_batch != sum(plan.batches):
        yield f"global_batch: {plan.global_batch}, where the batches are {sum(plan.batches)}"
    yield from _devices([share.device for share in plan.shares], count, "shares")
    yield from _devices([one.device for one in plan.left_out], count, "left_out")
    yield from _above_zero([plan.predicted.step_time_s, plan.predicted.throughput], "predicted")
    used = [share.batch for share in plan.shares if share.batch]
    yield from _above_zero(used, "shares")
    if not used:
        yield "shares: no device has samples"
    shares = [(share.device, share.batch, share.micro_batch) for share in plan.shares]
    if shares != list(zip(range(count), plan.batches, plan.micro_batches, strict=False)):
        yield "shares: not those of batches and micro_batches"
    even = plan.predicted.even
    if even is not None and len(even.batches) != len(used):
        yield f"predicted.even.batches: {len(even.batches)} of {len(used)} devices"
    if plan.balance is None:
        return
    for number, tried in enumerate(plan.balance.rounds):
        yield from _lengths({f"balance.rounds.{number}.batches": tried.batches}, count)
        yield from _lengths({f"balance.rounds.{number}.micro_batches": tried.micro_batches}, count)
        if tried.measured is not None:
            yield from _of_measurement(tried.measured, count, f"balance.rounds.{number}.measured.")
    if plan.balance.run is not None:
        yield from _of_run(plan.balance.run, "balance.run.")
        if len(plan.balance.run.devices) != count:
            yield "balance.run.devices: not the plan's"
    if plan.balance.solo_gap is not None:
        yield from _lengths({"balance.solo_gap.slowdown": plan.balance.solo_gap.slowdown}, count)
        yield from _above_zero([plan.balance.solo_gap.solo_sum], "balance.solo_gap.solo_sum")


def _of_run(run: Run, at: str) -> Iterator[str]:
    count = len(run.devices)
    yield from _lengths({f"{at}batches": run.batches, f"{at}micro_batches": run.micro_batches}, count)
    yield from _micro_batches(run.batches, run.micro_batches)
    yield from _of_measurement(run, count, at)
    if run.baselines.even is not None:
        yield from _of_measurement(run.baselines.even, count, f"{at}baselines.even.")
        if len(run.baselines.even.batches) != len(run.replicas):
            yield f"{at}baselines.even.batches: not one a replica of the run"
    yield from _devices([best.device for best in run.baselines.solo_best or ()], count, f"{at}baselines.solo_best")


def _of_measurement(one: Run | Measurement, count: int, at: str) -> Iterator[str]:
    yield from _devices([replica.device for replica in one.replicas], count, f"{at}replicas")
    if not one.replicas:
        yield f"{at}replicas: there is none"
    yield from _above_zero([one.step_time_s.median, one.throughput.median], f"{at}step_time_s and throughput")
    at_s = one.step_time_s.at_s
    if at_s is not None and len(at_s) != len(one.step_time_s.samples):
        yield f"{at}step_time_s.at_s: {len(at_s)} of {len(one.step_time_s.samples)} samples"
    yield from _above_zero([n for r in one.replicas for n in (r.batch, r.micro_batch)], f"{at}replicas")
    if not isinstance(one, Run):
        sizes = {f"{at}batches": one.batches, f"{at}micro_batches": one.micro_batches}
        yield from _lengths(sizes, len(one.replicas))


def _devices(numbers: Sequence[int], count: int, where: str) -> Iterator[str]:
    for place, number in enumerate(numbers):
        if not 0 <= number < count:
            yield f"{where}.{place}.device: there is no device {number}"
    if len(set(numbers)) < len(numbers):
        yield f"{where}: a device is there twice"


def _lengths(named: Mapping[str, Sequence[object]], count: int) -> Iterator[str]:
    for name, values in named.items():
        if len(values) != count:
            yield f"{name}: {len(values)} of {count} devices"


def _micro_batches(batches: Sequence[int], micro_batches: Sequence[int]) -> Iterator[str]:
    for number, (batch, micro) in enumerate(zip(batches, micro_batches, strict=False)):
        if batch < 0 or micro < 0 or (batch > 0) != (micro > 0) or (micro and batch % micro):
            yield f"micro_batches.{number}: {micro} of a batch of {batch}"


def _above_zero(values: Sequence[float], where: str) -> Iterator[str]:
    if any(value <= 0 for value in values):
        yield f"{where}: not above 0"
