"""What is finished is on disk at once, and read again whatever the end of the file looks like."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubalance.jobs.journal import Journal
from gpubalance.results.common import Refusal
from gpubalance.results.probe import Failure

DONE = {
    batch: Failure(exit_code=1, message=f"{batch} é\u2028[red]")
    for batch in ("8", "16", "24")
}
OTHER = Refusal(message="of another kind", remedy="none")


def written(key: str) -> Path:
    journal = Journal(key, "a test", resume=False)
    for batch, record in DONE.items():
        journal.add(batch, record)
    journal.close()
    return journal.path


def left(key: str) -> dict[str, Failure]:
    journal = Journal(key, "a test", resume=True)
    journal.close()
    return journal.load_all(Failure)


def test_what_is_added_is_there_under_its_key_and_kind() -> None:
    written("a")
    journal = Journal("a", "a test", resume=True)
    assert journal.resumed
    assert journal.load_all(Failure) == DONE
    assert journal.load_all(Refusal) == {}
    journal.add("8", OTHER)
    journal.close()
    again = Journal("a", "a test", resume=True)
    assert again.load_all(Failure) == DONE
    assert again.load_all(Refusal) == {"8": OTHER}
    with again:
        pass  # what ends well is in a result
    assert not Journal("a", "a test", resume=True).resumed


def test_without_resume_it_begins_anew() -> None:
    written("b")
    Journal("b", "a test", resume=False).close()
    assert Journal.left_at("b")  # nothing has taken its place yet
    journal = Journal("b", "a test", resume=False)
    assert journal.passes_over  # what `--resume` would go on with
    journal.add("8", DONE["16"])
    journal.close()
    assert left("b") == {"8": DONE["16"]}


def test_it_is_begun_anew_only_while_nothing_is_kept() -> None:
    """It is as if nothing were left, unless that is gone on with or something is kept already."""
    written("e")
    with Journal("e", "a test", resume=True) as resumed:
        resumed.begin_anew()
        assert resumed.path.exists()
        resumed.stays = True
    journal = Journal("e", "a test", resume=False)
    journal.begin_anew()
    assert not Journal.left_at("e")
    journal.add("8", DONE["16"])
    journal.begin_anew()
    journal.close()
    assert left("e") == {"8": DONE["16"]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), tail=st.binary(max_size=40))
def test_a_journal_cut_off_loses_only_its_last_line(cut: int, tail: bytes) -> None:
    path = written("c")
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept + tail.replace(b"\n", b"") if cut else whole)
    lines = kept.count(b"\n")
    # What stands after the last whole line may be anything: it spoils nothing before it.
    assert [*left("c").values()][:lines] == [*DONE.values()][:lines]
    assert len(left("c")) <= lines + 1


def test_entries_of_another_shape_are_passed_over() -> None:
    path = written("d")
    more = ['{"kind": "Failure", "key": "8", "record": {"trial": 5}}']
    more += ["[1, 2]", '"text"', "[" * 100_000]
    path.write_text(path.read_text() + "\n".join(more))
    assert left("d") == DONE
