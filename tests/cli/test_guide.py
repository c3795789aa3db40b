"""`gpubalance guide`, in a pipe and in a terminal."""

from __future__ import annotations

from pathlib import Path

from gpubalance.guide import names
from tests.cli.program import PROGRAM, broken, gpubalance, here, start
from tests.cli.terminal import command_in_terminal
from tests.support.cases import cases
from tests.support.in_process import Program


def test_without_a_chapter_it_lists_them(tmp_path: Path) -> None:
    checkout = {"GPUBALANCE_STARTED_AS": "scripts/gpubalance"}
    done = gpubalance("guide", code=0, environment=broken(tmp_path) | checkout)
    lines = done.stdout.splitlines()
    assert lines[-1] == "next: scripts/gpubalance guide CHAPTER"
    assert [line.split()[0] for line in lines[: len(names())]] == names()
    assert max(map(len, lines)) <= 80


def test_a_pipe_gets_the_markdown() -> None:
    done = here("guide", "numbers")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# The numbers")
    assert "\x1b" not in done.stdout
    assert "<!--" not in done.stdout


@cases("command", ("guide", "results"), ("run", "--help"), ("--version",))
def test_a_reader_who_closes_the_pipe_is_no_error(command: tuple[str, ...]) -> None:
    program = start(*command)
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert (program.stderr.read(), program.wait(60)) == ("", 0)


@cases("words", "guide", "guide --search queue", "run --simulate 2 --dry-run")
def test_a_narrow_terminal_cuts_no_word(words: str) -> None:
    code, seen = command_in_terminal((PROGRAM, *words.split()), 50)
    assert code == 0
    lines = seen.written.decode().replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 50


def test_an_unknown_chapter_is_named_without_its_escapes() -> None:
    done = here("guide", "prob\x1b[31m")
    assert (done.returncode, done.stdout) == (2, "")
    wanted = "error: the guide has no chapter prob\n  → gpubalance guide lists them\n"
    assert done.stderr == wanted


@cases(
    "word, remedy",
    ("torch", "did you mean gpubalance guide pytorch?"),
    ("blanace", "did you mean gpubalance guide balance?"),
    ("GradientTape", "gpubalance guide --search GradientTape finds it in train"),
    ("xyzzy", "gpubalance guide lists them"),
)
def test_a_chapter_that_is_not_there_names_the_one_that_was_meant(
    word: str, remedy: str, in_process: Program
) -> None:
    done = in_process(["guide", word])
    assert done.code == 2
    assert remedy in done.err


def test_a_search_lists_the_chapters_that_have_the_word(in_process: Program) -> None:
    done = in_process(["guide", "--search", "pytorch"])
    lines = done.out.splitlines()
    assert lines[0].startswith("pytorch: ")
    assert any(line.startswith("balance: ") for line in lines)
    places = [line for line in lines if line.startswith("    ")]
    assert all("pytorch" in line.lower() or "more" in line for line in places)
    assert max(map(len, lines)) <= 80
    nothing = in_process(["guide", "--search", "xyzzy"])
    assert (nothing.code, nothing.out) == (2, "")
    assert "no chapter contains 'xyzzy'" in nothing.err
    both = in_process(["guide", "train", "--search", "pytorch"])
    assert both.code == 2


def on_a_terminal(chapter: str, columns: int, **variables: str) -> str:
    """What the program writes to a terminal, with `cat` for a pager."""
    pager = {"PAGER": "cat", "MANPAGER": "cat"}
    code, seen = command_in_terminal(
        [PROGRAM, "guide", chapter], columns, environment=pager | variables
    )
    assert code == 0
    return seen.written.decode()


def test_a_terminal_gets_it_rendered() -> None:
    shown = on_a_terminal("numbers", 60)
    assert "\x1b[1" in shown
    assert "# The numbers" not in shown
    assert "Σ bᵢ / T" in shown


def test_a_table_loses_no_name_on_a_narrow_terminal() -> None:
    assert "…" not in on_a_terminal("results", 40)


def test_a_dumb_terminal_gets_no_escapes() -> None:
    assert "\x1b" not in on_a_terminal("numbers", 60, TERM="dumb")
