"""Whether several devices are worth it, an epoch's time, and the energy.

The figures are easily computed by hand.
"""

from __future__ import annotations

import pytest

from gpubalance.render.rates import worth_sentences
from gpubalance.results.common import Throughput
from gpubalance.results.run import Baselines, InputPipeline, Run, SoloBest
from gpubalance.results.timing import Telemetry
from gpubalance.results.warnings import warning
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.jobs.drawn import drawn_run
from tests.jobs.probes import devices_of
from tests.support.altered import altered
from tests.support.cases import cases


@pytest.fixture(scope="module")
def run() -> Run:
    """The run of two devices that do 100 + 100 samples in 0.1 s."""
    profile = DeviceProfile(name="A", alpha_s=0.0, beta_s=0.001)
    return drawn_run(devices_of(profile, profile), JointProfile(), (100, 100), seed=1)


def with_best(run: Run, rate: float, samples_per_joule: float | None = None) -> Run:
    best = SoloBest(
        device=1, batch=100, throughput=rate, samples_per_joule=samples_per_joule
    )
    slower = SoloBest(device=0, batch=100, throughput=rate / 2)
    baselines = Baselines(even=None, solo_best=(slower, best), solo_sum=None)
    return altered(run, baselines=baselines)


def test_there_is_no_verdict_where_most_steps_were_late(run: Run) -> None:
    """There is no verdict where most steps took longer than the profile says."""
    late = warning("too-slow-for-profile", late="88 %", advice="")
    slow = altered(with_best(run, 1000), warnings=(late,))
    (said,) = worth_sentences(slow)
    assert said.endswith("so it is unknown whether another device is worth it")


AT_BEST = "GPU:1 alone at its best ({} at batch 100): "


@cases(
    "alone, gain, worth",
    (1960, "2 % more than ", "hardly worth it"),
    (4000, "50 % less than ", "not worth it, use GPU:1 alone"),
)
def test_a_second_device_is_worth_it_or_not(
    run: Run, alone: float, gain: str, worth: str
) -> None:
    says = f"{gain}{AT_BEST.format(alone)}{worth}"
    assert run.throughput.median == pytest.approx(2000)
    assert list(worth_sentences(with_best(run, alone))) == [says]


SAME = "GPU:1 alone ({}), both with a global batch of 200: "


@cases(
    "same, gain, worth, larger",
    (1600, "25 % more", "worth it at this size", "a larger global batch may give more"),
    (2500, "20 % less", "not worth it at this size", "with a larger global batch it "),
)
def test_a_device_better_alone_is_also_compared_at_the_same_batch(
    run: Run, same: float, gain: str, worth: str, larger: str
) -> None:
    """A device that is better alone only with a larger batch is also compared at the same.

    What it gives alone at another batch says nothing of a second device's worth at this one.
    """
    best = SoloBest(device=1, batch=900, throughput=4000, at_global_batch=same)
    baselines = Baselines(even=None, solo_best=(best,), solo_sum=None)
    said = list(worth_sentences(altered(run, baselines=baselines)))
    at_best = "50 % less than GPU:1 alone at its best (4000 at batch 900)"
    assert said[0] == f"{gain} than {SAME.format(same)}{worth}"
    assert said[1].startswith(f"{at_best}: {larger}")


def test_what_a_pipeline_can_not_feed_is_worth_nothing(run: Run) -> None:
    def fed(rate: float) -> InputPipeline:
        alone = Throughput(median=rate, ci95=None)
        return InputPipeline(alone=alone, processor_use=0.5, held=None, binds=True)

    (less, epoch) = worth_sentences(with_best(run, 1000), 1_800_000, fed(900))
    takes = "GPU:1 alone takes 1000 (at batch 100)"
    assert less.startswith(f"{takes}, more than your input pipeline gives: another ")
    alike = "33.3 min with GPU:1 alone, 33.3 min with this split"
    assert epoch.endswith(f"{alike}; your input pipeline limits this")
    at_best = f"{AT_BEST.format(1000)}worth it"
    (told, *_) = worth_sentences(with_best(run, 1000), pipeline=fed(1500))
    assert told == f"50 % more behind your input pipeline than {at_best}"
    (told, *_) = worth_sentences(with_best(run, 1000), pipeline=fed(2500))
    assert told.startswith("100 % more than GPU:1 alone")


def test_energy_is_told_where_every_device_tells_it(run: Run) -> None:
    """300 W together at 2000 samples/s are 150 J for 1,000 samples; 5 samples/J alone are 200 J."""
    replicas = []
    for one, watts in zip(run.replicas, (200, 100), strict=True):
        seen = Telemetry(readings=9, duration_s=10.0, energy_j=watts * 10.0)
        replicas.append(altered(one, telemetry=seen))
    measured = altered(run, replicas=tuple(replicas))
    (_, found) = worth_sentences(with_best(measured, 1000, samples_per_joule=5.0))
    assert found == "energy of 1,000 samples: 200 J with GPU:1 alone, 150 J together"
    assert len(list(worth_sentences(with_best(run, 1000, samples_per_joule=5.0)))) == 1
