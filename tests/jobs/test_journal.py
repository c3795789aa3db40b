"""What is finished is on disk at once, and read again whatever the end of the file looks like."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubalance.errors import Interrupted
from gpubalance.jobs.keep.journal import Journal, content_key
from gpubalance.jobs.probe.alone import Work
from gpubalance.jobs.probe.bench import Attempt
from gpubalance.results.probe import Trial

ATTEMPTS = [Attempt(trial=Trial(batch=b, outcome="oom", seconds=1.0, reason="é\u2028[red]")) for b in (8, 16, 24)]


def written(key: str) -> Path:
    journal = Journal(key, "a test", resume=False)
    for attempt in ATTEMPTS:
        journal.add("SIM-0", attempt)
    journal.close()
    return journal.path


def test_what_is_added_is_there_for_its_device_and_kind() -> None:
    written("a")
    journal = Journal("a", "a test", resume=True)
    assert journal.resumed
    assert journal.of("SIM-0", Attempt) == ATTEMPTS
    assert journal.of("SIM-1", Attempt) == []
    assert journal.of("SIM-0", Work) == []
    journal.add("SIM-1", Work(step_flops=None))
    journal.close()
    again = Journal("a", "a test", resume=True)
    assert again.of("SIM-0", Attempt) == ATTEMPTS
    assert again.of("SIM-1", Work) == [Work(step_flops=None)]
    with again:
        pass  # what ends well is in a result
    assert not Journal("a", "a test", resume=True).resumed


def test_without_resume_it_begins_anew() -> None:
    written("b")
    Journal("b", "a test", resume=False).close()
    assert Journal.is_left("b")  # nothing has taken its place yet
    journal = Journal("b", "a test", resume=False)
    journal.add("SIM-1", Work(step_flops=None))
    journal.close()
    again = Journal("b", "a test", resume=True)
    assert again.of("SIM-0", Attempt) == []
    assert again.of("SIM-1", Work) == [Work(step_flops=None)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), tail=st.binary(max_size=40))
def test_a_journal_that_was_cut_off_loses_only_its_last_line(cut: int, tail: bytes) -> None:
    path = written("c")
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept + tail.replace(b"\n", b"") if cut else whole)
    left = Journal("c", "a test", resume=True).of("SIM-0", Attempt)
    # What stands after the last whole line may be anything: it spoils nothing that stands before it.
    assert left[: kept.count(b"\n")] == ATTEMPTS[: kept.count(b"\n")]
    assert len(left) <= kept.count(b"\n") + 1


def test_a_journal_that_is_too_long_keeps_what_it_has() -> None:
    path, told = written("long"), list[str]()
    journal = Journal("long", "a test", resume=True, most_bytes=path.stat().st_size + 10)
    journal.tell = told.append
    for _ in range(2):
        journal.add("SIM-0", ATTEMPTS[0])
    with pytest.raises(Interrupted, match="--resume continues it"), journal:
        raise Interrupted(2)
    (said,) = told
    assert said.endswith("continuing, but nothing more is kept for --resume")
    assert Journal("long", "a test", resume=True).of("SIM-0", Attempt) == ATTEMPTS


def test_entries_of_another_shape_are_passed_over() -> None:
    path = written("d")
    more = ['{"kind": "Attempt", "device": "SIM-0", "record": {"trial": 5}}', "[1, 2]", '"text"', "[" * 100_000]
    path.write_text(path.read_text() + "\n".join(more))
    assert Journal("d", "a test", resume=True).of("SIM-0", Attempt) == ATTEMPTS


def test_the_key_tells_contents_apart() -> None:
    one = ATTEMPTS[0]
    assert content_key(one, 1) == content_key(one.model_copy(), 1)
    assert content_key(one, 1) != content_key(one, 2) != content_key(ATTEMPTS[1], 1)
