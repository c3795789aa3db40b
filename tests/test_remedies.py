"""The table of known errors: found by the real texts, and by nothing that only looks like one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpubalance.cli.app import show_error, to_gpubalance_error
from gpubalance.errors import BadInput, EnvironmentFault, GpubalanceError, NothingFits
from gpubalance.jobs.doctor.check import guarded
from gpubalance.remedies import known_error, known_errors, match, match_log
from gpubalance.results.checkup import Check
from gpubalance.system.files import read_toml

TEXTS: dict[str, list[str]] = read_toml(
    Path(__file__).with_name("real_errors.toml"), "table of texts"
)
NOT_KNOWN = TEXTS.pop("none")
REAL = [(code, text) for code, texts in TEXTS.items() for text in texts]


@pytest.mark.parametrize(
    ("code", "text"), REAL, ids=[f"{code}-{i}" for i, (code, _) in enumerate(REAL)]
)
def test_a_real_text_finds_its_row(code: str, text: str) -> None:
    assert match(text) is known_error(code)


@pytest.mark.parametrize("text", NOT_KNOWN, ids=lambda text: text[:40])
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert match(text) is None


def test_each_row_is_whole_and_is_found_by_a_real_text() -> None:
    for row in known_errors().values():
        assert row.message
        assert row.cause
        assert row.remedy
    raised_here = ["no-driver", "driver-not-loaded", "no-permission", "hidden", "mig"]
    raised_here += ["gpu-needs-reset", "left-out"]
    with_signs = {row.code for row in known_errors().values() if row.signs}
    assert with_signs <= {*TEXTS, *raised_here}


def test_a_log_full_of_complaints_that_end_nothing_is_no_cause_of_death() -> None:
    complaint = "E cuda] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    assert match(complaint) is not None
    assert match_log(f"{complaint}\nloading\n") is None
    last = "F] CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    row = match_log(f"{complaint}\n{last}\nAborted\n")
    assert row is known_error("illegal-address")


def test_an_error_has_cause_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(error: GpubalanceError) -> str:
        assert show_error(error, verbose=False) == error.exit_code
        return capsys.readouterr().err

    whole = EnvironmentFault("it failed", cause="of that", remedy="do this")
    assert whole.exit_code == 3
    assert shown(whole) == "error: it failed\n  cause: of that\n  → do this\n"
    # An error without cause and remedy takes them from the table.
    # What the user wrote is never looked up.
    no_room = known_error("no-room")
    of_table = EnvironmentFault("INTERNAL: Dst tensor is not initialized.")
    assert no_room.remedy in shown(of_table)
    # A cause that the message tells already is not told twice.
    text = f"Dst tensor is not initialized: {no_room.cause}"
    assert "cause:" not in shown(EnvironmentFault(text, remedy="do this"))
    lacks = NothingFits("out of memory: GPU:1 at batch 8", remedy="--batches 4")
    cause = known_error("out-of-memory").cause
    assert f"cause: {cause}\n  → --batches 4\n" in shown(lacks)
    assert "→" not in shown(BadInput("my model says: Dst tensor is not initialized."))


def test_an_unforeseen_error_is_a_known_one(capsys: pytest.CaptureFixture[str]) -> None:
    bug, full = "a bug in gpubalance: ", "No space left on device"
    quoted = f"error: {bug}KeyError: '{full}'\n  → report the output with --verbose\n"
    for error, code, says in (
        (OSError(28, full), 3, known_error("disk-full").remedy),
        (RuntimeError("of ours"), 1, f"{bug}RuntimeError: of ours"),
        (KeyError(full), 1, quoted),
    ):
        found = to_gpubalance_error(error, [])
        assert found is not None
        assert show_error(found, verbose=False) == code
        assert says in capsys.readouterr().err


def test_a_check_that_has_a_bug_names_no_remedy_of_what_it_quotes() -> None:
    """A check of doctor that has a bug names no remedy of what it quotes."""
    (bug,) = guarded("disk", _quoting(KeyError))
    (fault,) = guarded("disk", _quoting(OSError))
    assert isinstance(bug, Check)
    assert isinstance(fault, Check)
    assert (bug.next, fault.next) == (None, known_error("disk-full").remedy)


def _quoting(kind: type[Exception]) -> Iterator[Check]:
    raise kind("No space left on device")
    yield
