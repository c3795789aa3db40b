"""What others published: predicted by the planner, and where their devices slow each other down."""

from __future__ import annotations

import numpy as np
import pytest

from gpubalance.settings.batch_split import BatchSplit
from scripts.benches import published
from scripts.benches.published import Joint, PublishedSet, errors, middle, none, two
from tests.support.cases import cases


def test_two_joint_measurements_tell_more_than_one() -> None:
    pairs = [one for cards, one in published.of_server_gear() if cards == 2]
    medians = [np.median(np.abs(errors(pairs, how))) for how in (none, middle, two)]
    assert medians[0] > 5 * medians[1] > 5 * medians[2]
    assert medians[2] < 0.01


def test_unlike_servers_are_predicted_from_one_joint_measurement() -> None:
    (error,) = errors([published.of_sailor()], middle)
    assert abs(error) < 0.05


def test_without_the_folder_a_line_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(published.FOLDER, raising=False)
    lines = list(published.main())
    assert f"{published.FOLDER} names no folder" in lines[1]
    assert [line.partition(":")[0] for line in lines[2:]] == [
        "server-gear, 2 cards",
        "server-gear, 4 and 8",
        "four cards",
        "Sailor",
    ]


# Seconds alone, and together those of the step and its sync. Some figures of
# github.com/siasosp23/artifacts, commit aaf7a0de, sia-simulator/traces.
@cases(
    "cards, batch, alone_s, step_s, sync_s, times",
    (8, 4, 0.2922, 0.4881, 0.0487, 1.50),  # yolov3, dgx
    (8, 16, 0.3261, 1.1661, 0.4904, 2.07),  # yolov3, azure
    (4, 6, 0.2786, 0.5605, 0.1992, 1.30),  # yolov3, quad
    (8, 10, 0.2991, 0.6784, 0.1073, 1.91),  # deepspeech2, rtx
    (
        8,
        80,
        1.4985,
        1.6515,
        0.0833,
        1.05,
    ),  # deepspeech2, dgx, whose batch is large enough
    (4, 115, 0.2790, 0.2874, 0.0312, 0.92),  # imagenet, quad
)
def test_what_devices_lack_together_is_told_by_their_compute(
    cards: int, batch: int, alone_s: float, step_s: float, sync_s: float, times: float
) -> None:
    curve = ((batch // 2, alone_s / 2), (batch, alone_s))
    joint = Joint(BatchSplit((batch,) * cards), step_s, sync_s)
    estimates = PublishedSet((curve,) * cards, (joint,)).estimates([joint])
    best = estimates.best()
    assert best is not None
    times_alone = estimates.times_alone(joint.split, best.counted_measurements[-1])
    assert times_alone == pytest.approx(times, abs=0.006)
