"""How long a probe takes of small models on large cards, by the stand-in engine's clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpubalance.jobs.measure.stopping import LEAST_TIMINGS
from gpubalance.jobs.measure.workload_runner import SETTLING_STEPS
from gpubalance.jobs.probe.probe import probe
from gpubalance.results.probe import DeviceProbe
from gpubalance.settings.device import DeviceProfile
from gpubalance.settings.requests import ProbeRequest
from gpubalance.settings.settings import Settings
from tests.cli.program import TINY
from tests.jobs.drawn import nothing_kept, quiet
from tests.jobs.probes import devices_of, held_by
from tests.support.altered import altered
from tests.support.cases import cases
from tests.support.known import known

_LONGEST_S = 180.0


def card(seed: int) -> DeviceProfile:
    """A model on a card of 6 to 140 GB, whose launches, samples and bytes are drawn."""
    random = Random(seed)

    def drawn(minimum: float, maximum: float) -> float:
        return float(minimum * (maximum / minimum) ** random.random())

    return DeviceProfile(
        name=f"card {seed}",
        alpha_s=drawn(3e-4, 3e-2),
        beta_s=drawn(1e-6, 1e-3),
        memory=int(drawn(6e9, 140e9)),
        base_memory=int(drawn(1e8, 2e9)),
        memory_per_sample=int(drawn(2e3, 2e6)),
        noise=0.002,
    )


@pytest.fixture
def seconds(tmp_path: Path, engine_that: Callable[[str], None]) -> Path:
    """The file with the seconds of each timing."""
    kept = tmp_path / "seconds"
    engine_that(f"""
def took(seconds):
    with open({str(kept)!r}, "a") as file:
        file.write(f"{{seconds}}\\n")
""")
    return kept


def seconds_in(kept: Path) -> list[float]:
    return [float(line) for line in kept.read_text().splitlines()]


def probed(profile: DeviceProfile, **options: object) -> DeviceProbe:
    request = ProbeRequest(
        devices=devices_of(profile), settings=Settings(model=TINY), **options
    )
    return probe(request, quiet, nothing_kept()).probes[0]


@pytest.mark.parametrize("seed", range(12))
def test_a_probe_takes_at_most_three_minutes(seed: int, seconds: Path) -> None:
    """No limit is looked for where steps get long and throughput stopped rising long before."""
    profile = card(seed)
    found = probed(profile)
    limit = known(found.batch_limit)
    assert sum(seconds_in(seconds)) <= _LONGEST_S
    holds = held_by(profile)
    if limit.plateau is None:
        assert limit.fits == holds // 8 * 8
        return
    assert limit.fits == max(point.batch for point in found.curve) < holds
    assert 2 * limit.plateau <= limit.fits
    rates = [batch / profile.compute_s(batch) for batch in (limit.plateau, 10**9)]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)


@pytest.mark.usefixtures("seconds")
@cases("asked", {"find_limit": True}, {"max_batch": 70_000}, ids=str)
def test_a_limit_is_looked_for_where_it_is_asked_for(asked: dict[str, Any]) -> None:
    profile = card(5)
    limit = known(probed(profile, **asked).batch_limit)
    holds = held_by(profile) // 8 * 8
    assert limit.plateau is None
    assert limit.fits == min(holds, asked.get("max_batch", holds))


def test_a_try_for_the_limit_that_is_long_ends_after_two_steps(seconds: Path) -> None:
    """Its step time is measured once, when the limit is known."""
    profile = card(5)
    found = probed(profile, find_limit=True)
    limit = known(found.batch_limit)
    (point,) = (point for point in found.curve if point.batch == limit.fits)
    long_s = 0.99 * profile.compute_s(point.batch)
    of_limit = [took_s for took_s in seconds_in(seconds) if took_s > long_s]
    # Two of the last three that settle it count as timings too.
    assert len(of_limit) == 2 + SETTLING_STEPS + LEAST_TIMINGS - 2


@cases("beta_s, stops", (1.37e-5, True), (1.0e-6, False), ids=str)
def test_a_single_long_step_shows_that_throughput_stopped_rising(
    beta_s: float, stops: bool, seconds: Path
) -> None:
    """A try of a second or more ends the search, if it gives no more than three octaves before."""
    needs = {"base_memory": 30_000_000, "memory_per_sample": 11_000}
    times = {"alpha_s": 4e-3, "beta_s": beta_s}
    profile = altered(card(5), memory=1_800_000_000, **needs, **times)
    limit = known(probed(profile, for_split=True).batch_limit)
    assert seconds.exists()
    assert (limit.fails is None, limit.plateau is not None) == (stops, stops)
    if stops:
        assert [trial.outcome for trial in limit.trials] == ["fits"]
