"""How long a worker may be silent, by the slowest of its own timings, and what it must say."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gpubalance.devices.profile import simulated_devices
from gpubalance.errors import PartialResult
from gpubalance.results.timing import Timing
from gpubalance.settings.batch_split import BatchSplit
from gpubalance.system.deadlines import TimeLimit
from gpubalance.workers.messages import AnyReply, Measured, SumsTimed, TimeSums
from gpubalance.workers.worker import (
    FIRST_STEP_WITHIN_S,
    LOADS_WITHIN_S,
    Worker,
    patience_for,
)
from tests.support.cases import cases

PAIR, _ = simulated_devices("2")
SPLIT = BatchSplit((8, 8))


class Answers:
    """A process whose replies are there at once; notes how long it might have been silent."""

    log = Path("no.log")

    def __init__(self) -> None:
        self.replies = deque[AnyReply]()
        self.waited_s: list[float] = []
        self.worker_has_answered = False

    def send(self, _: object) -> None:
        pass

    def receive(self, within_s: float, _: str) -> AnyReply:
        self.waited_s.append(within_s)
        self.worker_has_answered = True
        return self.replies.popleft()


def worker_with(answers: Answers, deadline_s: float | None = None) -> Worker:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpubalance.workers.worker.worker_process", lambda *_: answers)
        return Worker(PAIR, "test", deadline_s, TimeLimit(None))


def waits_s(
    worker: Worker, timings_s: Sequence[float], steps: int = 1, **how: Any
) -> list[float]:
    """The patience for each reply of a measurement with such timings, and for its end."""
    answers = cast("Answers", worker.process)
    answers.waited_s.clear()
    for seconds in timings_s:
        parts: dict[str, Any] = {}
        if how.get("stamped"):
            parts = {"compute_s": (1.0, 1.0), "update_s": (0.0, 0.0)}
        taken: Any = {"steps": steps, "seconds": seconds, "input_wait_s": 0.0}
        answers.replies.append(Timing(**taken, **parts))
    answers.replies.append(Measured(memory_peak_bytes=(None, None), late_part=0.0))
    list(worker.measure(how.pop("split", SPLIT), steps_per_timing=steps, **how))
    return answers.waited_s


def test_a_worker_that_was_slow_before_may_be_slow_again() -> None:
    """A step that once took 10 s is waited for 30 times as long, however fast the others were."""
    worker = worker_with(Answers())
    first, *later = waits_s(worker, [10.0, 0.1, 0.1])
    assert first == FIRST_STEP_WITHIN_S
    assert later == [300.0, 300.0, 300.0]
    # So it is in the next window.
    assert waits_s(worker, [0.1]) == [300.0, 300.0]
    # One that is slower still counts from then on.
    assert waits_s(worker, [20.0]) == [300.0, 600.0]


def test_the_patience_is_that_of_one_step_times_those_of_a_timing() -> None:
    worker = worker_with(Answers())
    waits_s(worker, [40.0], steps=4)
    assert waits_s(worker, [1.0], steps=2) == [600.0, 600.0]
    assert patience_for(1, 0.1) == 60.0
    assert patience_for(1, 2.0) == 60.0
    assert patience_for(5, 0.5) == 75.0
    assert patience_for(5, None) == FIRST_STEP_WITHIN_S


OTHERS = [{"split": BatchSplit((12, 4))}, {"stamped": True}, {"pipeline": True}]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_steps_of_another_kind_have_their_own_patience(other: dict[str, Any]) -> None:
    """They are traced first, which may take long."""
    worker = worker_with(Answers())
    waits_s(worker, [0.1])
    assert waits_s(worker, [0.1], **other) == [FIRST_STEP_WITHIN_S, 60.0]
    assert waits_s(worker, [0.1]) == [60.0, 60.0]


def test_a_deadline_rules_and_loading_counts_before_the_first_answer() -> None:
    assert waits_s(worker_with(Answers(), deadline_s=7.0), [9.0]) == [7.0, 7.0]
    answers = Answers()
    worker = worker_with(answers)
    for _ in range(2):
        answers.replies.append(SumsTimed(seconds=(1.0,)))
        worker.ask(TimeSums(groups=((0, 1),), nbytes=4), SumsTimed)
    loading_s = FIRST_STEP_WITHIN_S + LOADS_WITHIN_S
    assert answers.waited_s == [loading_s, FIRST_STEP_WITHIN_S]


SAID = {"steps": 1, "seconds": 0.1, "input_wait_s": 0.0, "update_s": (0.0, 0.0)}
OF_ONE = Timing(**SAID, compute_s=(0.1,))
WHOLE = Timing(**SAID, compute_s=(0.1, 0.1))


@cases(
    "replies",
    (WHOLE, Measured(memory_peak_bytes=(None, None), late_part=0.0)),
    (WHOLE, WHOLE, Measured(memory_peak_bytes=(5,), late_part=0.0)),
    (OF_ONE,),
    ids=["a timing less", "a peak less", "a compute less"],
)
def test_a_worker_that_says_less_than_it_was_asked_is_refused(
    replies: Sequence[AnyReply],
) -> None:
    answers = Answers()
    answers.replies += replies
    measuring = worker_with(answers).measure(SPLIT, stamped=True, at_least=2)
    with pytest.raises(PartialResult, match="fewer timings than requested"):
        list(measuring)
