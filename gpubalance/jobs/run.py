"""`run`: a split, trained for real, in turns with the even split."""

from __future__ import annotations

from gpubalance.devices.planned import check_model
from gpubalance.errors import GpubalanceError, Interrupted, OutOfMemory
from gpubalance.jobs.events import Doing, TimeLeft, Watch, WindowDone
from gpubalance.jobs.keep.journal import Journal
from gpubalance.jobs.keep.journals import tell_resumed
from gpubalance.jobs.keep.kept import Kept
from gpubalance.jobs.measure.fitting import Fitting
from gpubalance.jobs.measure.joint import JointRun, joint_series, model_of, party_for
from gpubalance.jobs.measure.lost import lost_gpus_told
from gpubalance.jobs.measure.series import Series
from gpubalance.jobs.measure.timings import Timings
from gpubalance.jobs.measure.trace import traced
from gpubalance.jobs.measure.warnings import PRECISE_ENOUGH, resumed, slowed_text
from gpubalance.results.common import Model, Warning_
from gpubalance.results.run import Run, SoloBest
from gpubalance.settings.requests import RunRequest
from gpubalance.settings.shares import Shares
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.party import Party


def run(
    request: RunRequest,
    driver: str | None,
    watch: Watch,
    solo: tuple[SoloBest, ...] | None = None,
    planned: Model | None = None,
    journal: Journal | None = None,
) -> Run:
    """Trains with the request's split and reports what it gives.

    `driver` is recorded. `solo` is what the devices gave alone, to compare with. `planned` is the model that a plan is
    for. Windows go into the `journal`, and those that are in it are not measured again.

    Devices with batch 0 are left out: an empty share is not a replica. Raises NothingFits with a split that does fit
    when a device runs out of memory. Every error after the first window carries what was measured as `partial`.
    """
    used, limit = request.of_used, TimeLimit(request.measuring.time_limit_s)
    tell_resumed(journal, watch)
    try:
        with lost_gpus_told(used.devices), party_for(used, watch, limit) as party:
            party.start()
            check_model(planned, model_of(party))
            try:
                result = run_on(party, request, driver, watch, solo, Kept(journal, watch))
            except OutOfMemory as error:
                raise out_of_memory_told(error, party, used, watch) from None
            return traced(result, party, used, watch)
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt) from None


def out_of_memory_told(error: OutOfMemory, party: Party, request: RunRequest, watch: Watch) -> GpubalanceError:
    """What fits instead; what was measured before is part of the error, however the search for that ends."""
    try:
        return Fitting(party, request, watch).error(error)
    except KeyboardInterrupt as interrupt:
        return Interrupted.by(interrupt, partial=error.partial)
    except GpubalanceError as other:
        other.partial = other.partial or error.partial
        return other


def run_on(
    party: Party,
    request: RunRequest,
    driver: str | None,
    watch: Watch,
    solo: tuple[SoloBest, ...] | None = None,
    kept: Kept | None = None,
    proof: int = 0,
) -> Run:
    """The same with a party of the devices that have samples, which stays. Raises OutOfMemory as it comes.

    `proof` tells runs apart that are kept together.
    """
    so_far = JointRun(request, party, driver, watch, kept or Kept(None, watch), solo, proof)
    try:
        _warm_up(so_far)
        _measure(so_far)
    except KeyboardInterrupt as interrupt:
        raise Interrupted.by(interrupt, partial=so_far.result()) from None
    except GpubalanceError as error:
        error.partial = error.partial or so_far.result()
        raise
    so_far.complete = True
    result = so_far.result()
    assert result is not None  # noqa: S101  (a complete run has a window)
    return result


def _warm_up(so_far: JointRun) -> None:
    request, party = so_far.request, so_far.party
    _restore(so_far, "", so_far.own)
    if so_far.own.windows:
        so_far.warnings.append(resumed(so_far.own.windows))
    so_far.watch(Doing(f"warming up {request.split}"))
    party.ask(so_far.own.warm_up)
    if request.measuring.baseline == "none":
        return
    # The even split is what Keras would do: it accumulates nothing.
    even = Shares.even(request.split.global_batch, len(request.devices))
    if even == request.split or len(request.devices) == 1:
        return
    so_far.watch(Doing(f"warming up the even split {even}, to compare with"))
    try:
        so_far.even = joint_series(request, even, so_far.watch, "even")
        party.ask(so_far.even.warm_up)
    except OutOfMemory as error:
        try:
            so_far.even = _smaller_even_split(so_far, even, error)
        except OutOfMemory as again:
            _give_up_even(so_far, again)
    if so_far.even is not None:
        _restore(so_far, "even", so_far.even)


def _restore(so_far: JointRun, name: str, series: Series) -> None:
    """Takes over what was measured before, and tells it as if it were measured now."""
    devices = so_far.request.devices
    found = so_far.kept.restore(so_far.key, name, series)
    for number, window in enumerate(found, 1):
        of = max(so_far.request.measuring.windows, len(found))
        so_far.watch(WindowDone(number, of, name, devices, window.measurement(range(len(devices)))))


def _smaller_even_split(so_far: JointRun, even: Shares, error: OutOfMemory) -> Series:
    request = so_far.request
    where = "a device" if error.replica is None else request.devices[error.replica].label
    so_far.watch(Doing(f"the even split {even} does not fit on {where}; looking for the largest equal shares"))
    started = so_far.party.started
    share = Fitting(so_far.party, request, so_far.watch).largest_even_share(max(even.batches))
    smaller = Shares((share,) * len(even.batches))
    series = joint_series(request, smaller, so_far.watch, "even")
    so_far.watch(Doing(f"warming up {smaller}, the largest equal shares that fit"))
    so_far.party.ask(series.warm_up)
    # On a real device the search left another worker: the split itself must be warm in it too.
    if so_far.party.started != started:
        so_far.party.ask(so_far.own.warm_up)
    so_far.warnings.append(
        Warning_(
            code="even-split-does-not-fit",
            message=f"the even split {even} runs out of memory on {where}: "
            f"compared with {smaller} instead, the largest equal shares that fit",
            next="nothing to do: no equal split of this global batch is possible on these devices",
        )
    )
    return series


def _measure(so_far: JointRun) -> None:
    """Windows of the split and of the even split in turns, so that a machine that drifts is fair to both."""
    measuring = so_far.request.measuring
    number = min(one.windows for _, one in so_far.series)  # 0, but for a run that goes on
    of = max(number, measuring.windows)
    while number < of or _once_more(so_far, of):
        number += 1
        of = max(number, of)
        turns = ", in turns with the even split" if so_far.even else ""
        so_far.watch(Doing(f"measuring {so_far.own.split}, window {number} of {of}{turns}"))
        so_far.watch(TimeLeft((of - number + 1) * len(so_far.series) * measuring.duration_s))
        # Each goes first in turn: on a card that gets hotter the second one is always a little slower.
        for name, one in so_far.series if number % 2 else reversed(so_far.series):
            window = _window(so_far, one) if one.windows < number else None
            if window is not None:
                devices = so_far.request.devices
                so_far.kept.window(so_far.key, name, window)
                so_far.watch(WindowDone(number, of, name, devices, window.measurement(range(len(devices)))))


def _once_more(so_far: JointRun, windows: int) -> bool:
    """Whether it takes another window than those that were asked for. Tells why."""
    imprecise = any(one.precision > PRECISE_ENOUGH for _, one in so_far.series)
    if imprecise and windows < so_far.request.measuring.max_windows:
        so_far.watch(Doing(f"not yet known within ±{PRECISE_ENOUGH:.0%} (95 %): one more window"))
        return True
    if so_far.slowed and not so_far.measured_again:
        so_far.measured_again = True
        so_far.watch(Doing(f"{slowed_text(so_far.slowed)}: measuring once more"))
        return True
    return False


def _window(so_far: JointRun, one: Series) -> Timings | None:
    """A window of one of the two; None where the even split ran out of memory, without which the run goes on."""
    try:
        return so_far.party.ask(lambda worker: one.window(worker, so_far.request.measuring.duration_s))
    except OutOfMemory as error:
        if one is so_far.own:
            raise
        _give_up_even(so_far, error)
        return None


def _give_up_even(so_far: JointRun, error: OutOfMemory) -> None:
    so_far.watch(Doing(f"{error.message}: going on without the even split"))
    so_far.even = None
    so_far.warnings.append(
        Warning_(
            code="even-split-out-of-memory",
            message=f"{error.message}, in turns with the run's split: there is no even split to compare with",
            next="compare with smaller batches, or measure with --baseline none",
        )
    )
    so_far.party.ask(so_far.own.warm_up)
