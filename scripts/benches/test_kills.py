"""A small part of `scripts/bench kills`, and what the campaigns are made of.

Other moments have tests in tests/cli. A soak is `campaign`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from scripts.benches import kills, soak
from scripts.benches.__main__ import read


@pytest.mark.parametrize(
    ("campaign", "count"),
    [
        pytest.param(
            partial(kills.main, commands=["run"]),
            1,
            id="a run",
            marks=pytest.mark.campaign,
        ),
        # Only the workers' engine is another one; the program, its processes, signals, journals
        # and files are the same.
        pytest.param(
            kills.kills_without_tensorflow,
            5,
            id="five without TensorFlow",
            marks=pytest.mark.full,
        ),
    ],
)
def test_kills_lose_nothing_and_leave_nothing(
    campaign: Callable[[int], Iterator[str]], count: int
) -> None:
    """The moments are other ones each time; what is printed names their seed."""
    lines = list(campaign(count))
    assert not [line for line in lines if "FAILED" in line], lines
    (killed,) = re.findall(rf"{count} runs, (\d+) killed", lines[-1])
    # The others were over before, as where a busy machine gets quiet.
    assert int(killed) >= min(1, count // 2)


@pytest.mark.campaign
def test_a_parent_of_many_workers_stays_as_it_is() -> None:
    lines = list(soak.main(30))
    assert not [line for line in lines if "FAILED" in line], lines


def test_the_kills_are_the_same_for_a_seed_and_cover_every_kind() -> None:
    first, again = (list(kills.kills(18, Random(5))) for _ in range(2))
    assert first == again
    assert len({(kill.command, kill.victim, kill.number) for kill in first}) == 18


def test_a_soak_tells_what_grew() -> None:
    warm = soak.Level(50 << 20, 9, 1, 52)
    assert len(list(soak.grown("steps", {1: warm, 5: warm}))) == 1
    told = list(soak.grown("steps", {1: warm, 5: soak.Level(80 << 20, 10, 1, 52)}))
    assert told[:-1] == [
        "FAILED memory grew by 30 MiB",
        "FAILED 10 handles, and 9 before",
    ]


def test_a_bench_takes_a_number_and_a_seed() -> None:
    assert read(["kills", "30", "7", "fuzz", "startup"]) == [
        ("kills", [30, 7]),
        ("fuzz", []),
        ("startup", []),
    ]
    for words in (["startup", "3"], ["3"], ["kills", "1", "2", "3"], ["no-such"]):
        with pytest.raises(SystemExit, match="there is no bench"):
            read(words)
