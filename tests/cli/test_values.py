"""Options that take lists, in every way that people write them."""

from __future__ import annotations

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from gpubalance.cli.command import spread
from tests.cli.program import PROGRAM, QUICK_PAIR, here, one_line
from tests.cli.terminal import command_in_terminal
from tests.support.cases import cases
from tests.support.in_process import Program

LISTS = ("--gpus", "--batches")


@cases(
    "written",
    *("--gpus 0 1", "--gpus 0,1", "--gpus=0,1", "--gpus 0, 1"),
    *("--gpus=0 1", "--gpus 0 --gpus 1", "--gpus '0 1'"),
)
@cases("after", [], ["-o", "out.json"], ["p.json", "-q"], ["--batches", "820", "568"])
def test_all_spellings_are_one(written: str, after: list[str]) -> None:
    found = spread(["run", *shlex.split(written), *after], LISTS)
    values = [word.partition("=")[2] for word in found if word.startswith("--gpus=")]
    assert re.findall("[^, ]+", " ".join(values)) == ["0", "1"]
    assert found[0] == "run"
    if after and after[0] == "--batches":
        assert found[-2:] == ["--batches=820", "--batches=568"]
    elif after:
        assert found[-len(after) :] == after


@cases(
    "words",
    "run --gpus --simulate 2",
    "run --gpus --simulte 2",
    "run --simulate 2 --batches --dry-run",
    "independent --simulate 2 --model --dry-run",
    "queue --simulate 2 --gpus trials.txt --dry-run",
    "run --simulate 2 -o --no-xla",
    "check -o --simulate=2",
    "launch --restarts --dry-run plan.json train.py",
)
def test_no_option_is_taken_for_a_value(in_process: Program, words: str) -> None:
    done = in_process(words.split())
    assert done.code == 2
    name = "(--gpus|--batches|--model|-o|--restarts)"
    assert re.match(rf"error: {name} needs a value\n", done.err)


@cases("words", "plan.json train.py --hosts --via", "plan.json -- --hosts --via")
def test_a_script_s_own_options_are_not_judged(in_process: Program, words: str) -> None:
    done = in_process(["launch", *words.split()])
    assert "can't read plan.json: No such file" in done.err


@cases(
    "words",
    *("plan --simulate", "check --model", "run --data", "balance --hosts", "probe -o"),
    *(
        "run --config",
        "run --tensorboard",
        "balance --script",
        "plan --curve",
        "report x.json --html",
    ),
)
@cases("empty", ["", "--quiet"], [""])
def test_an_empty_value_is_refused_and_its_option_named(
    in_process: Program, words: str, empty: list[str]
) -> None:
    done = in_process([*words.split(), *empty])
    assert (done.code, done.out) == (2, "")
    assert re.match(r"error: --\w+ needs a value\n", done.err)


def test_a_result_behind_a_list_is_the_argument(in_process: Program) -> None:
    """Plan's is optional, so nothing is missing if the list takes it."""
    done = in_process(["plan", "--simulate", "2", "--gpus", "0", "1", "p.json"])
    assert (done.code, "can't read p.json: No such file" in done.err) == (2, True)
    for gpus in (["--gpus", "0", "1"], ["--gpus=0"]):
        done = in_process(["queue", "--simulate", "2", *gpus, "q.txt", "-q"])
        assert (done.code, "can't read q.txt: No such file" in done.err) == (2, True)


@cases("bad", "x", "-5", "1.5", "1e3", "٣", "99999999999999999999", "0x10")
def test_what_is_no_whole_number_is_named(in_process: Program, bad: str) -> None:
    done = in_process(["run", "--simulate", "2", "--batches", "820", bad])
    assert done.code == 2
    assert done.err.startswith(f"error: --batches '{bad[:12]}")


@cases(
    "number, remedy",
    ("3,2", "write 3.2 with a decimal point, or 32"),
    ("3,200", "write 3.200 with a decimal point, or 3200"),
    ("1,234,567.5", "write 1234567.5"),
)
def test_a_comma_is_refused_here(in_process: Program, number: str, remedy: str) -> None:
    for command in ("plan", "balance"):
        done = in_process([command, "--simulate", "2", "--noise-scale", number])
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: --noise-scale {number} has a comma, ")
        assert f"\n  → {remedy}\n" in done.err


def test_a_noise_scale_s_file_may_have_a_comma_in_its_name(in_process: Program) -> None:
    done = in_process(["plan", "--simulate", "2", "--noise-scale", "noise,3.json"])
    assert done.code == 2
    assert "can't read noise,3.json: No such file" in done.err


@given(
    st.lists(
        st.text(min_size=1).filter(lambda t: not t.startswith(("--gpus", "--batches")))
    )
)
def test_everything_else_stays_as_it_is(arguments: list[str]) -> None:
    assert spread(arguments, LISTS) == arguments


def test_an_error_on_a_terminal_is_cut_between_words() -> None:
    words = ("run", "--simulate", QUICK_PAIR, "--batches", "1", "2", "3")
    told = one_line(here(*words, code=2).stderr)
    code, seen = command_in_terminal((PROGRAM, *words), 40)
    assert code == 2
    assert one_line(" ".join(seen.pictures[-1])) == told
    assert len([line for line in seen.pictures[-1] if line]) > 2
