"""A comparison's text: whole outputs, in 80 columns and in 40."""

from __future__ import annotations

from pathlib import Path

from gpubalance.render.compare import comparison_text, file_names
from gpubalance.results.comparison import Comparison
from gpubalance.results.run import Run
from tests.cli.program import one_line
from tests.jobs.drawn import drawn_run
from tests.jobs.probes import inside, probe_of
from tests.jobs.test_compare import (
    BASELINE,
    DEVICES,
    JOINT,
    OTHER,
    compared_in,
    disturbed,
    plan_of,
    sampled,
    slower,
)
from tests.support.altered import altered
from tests.support.cases import cases

GOLDEN = Path(__file__).parent / "compare.txt"


def mixed(run: Run) -> Run:
    return inside(run, "settings", precision="mixed_float16")


def several(folder: Path) -> Comparison:
    """A comparison that has every kind of text about runs."""
    short = altered(OTHER, complete=False, warnings=())
    alone = drawn_run(DEVICES[:1], JOINT, (820,), seed=4)
    proven = {
        "before": BASELINE,
        "after": slower(OTHER, 0.97),
        "mixed": mixed(slower(short, 1.05)),
        "again": OTHER,
    }
    return compared_in(folder, {**proven, "alone": alone, "plan": plan_of()})


@cases("width", 80, 40)
def test_the_whole_text(tmp_path: Path, width: int) -> None:
    """A changed one is accepted by writing it to the golden file, after a look at it."""
    old = sampled(probe_of(DEVICES))
    new = sampled(probe_of(DEVICES), 1.04, seed=1)
    probes = compared_in(tmp_path, {"old": old, "new": new})
    texts = [comparison_text(found, width) for found in (several(tmp_path), probes)]
    assert max(len(line) for text in texts for line in text.splitlines()) <= width
    golden = GOLDEN.with_stem(f"compare-{width}")
    assert "\n\n\n".join(texts) + "\n" == golden.read_text()


def test_a_verdict_of_a_machine_that_was_not_quiet_carries_it(tmp_path: Path) -> None:
    of_two = {"a": BASELINE, "b": disturbed(OTHER, 2.0)}
    text = comparison_text(compared_in(tmp_path, of_two))
    verdict = one_line(text.split("\n\n")[0])
    slower_but = "b.json is slower than a.json, but the machine was not quiet (b.json:"
    assert verdict.startswith(slower_but)
    of_unlike = {"a": BASELINE, "b": mixed(disturbed(OTHER))}
    same = comparison_text(compared_in(tmp_path, of_unlike))
    says = "but under other conditions, and the machine was not quiet (b.json:"
    assert says in one_line(same)


def test_one_batch_size_in_common_is_told_as_one(tmp_path: Path) -> None:
    probe = sampled(probe_of(DEVICES))
    probes = [altered(one, curve=one.curve[:1]) for one in probe.probes]
    short = altered(probe, probes=tuple(probes))
    text = comparison_text(compared_in(tmp_path, {"a": probe, "b": short}))
    assert "the samples/s at the one batch size that both have (" in one_line(text)


def test_two_plans_that_never_ran_are_told_of_together(tmp_path: Path) -> None:
    plans = {"a": plan_of(), "b": altered(plan_of(), created="later")}
    text = one_line(comparison_text(compared_in(tmp_path, plans)))
    assert "a.json and b.json were never run: their figures are predictions" in text


def test_names_from_files_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    bad = altered(DEVICES[0], name="\x1b[31mred\x1b[0m\x07")
    run = altered(OTHER, devices=(bad, *DEVICES[1:]))
    text = comparison_text(compared_in(tmp_path, {"a": BASELINE, "\x1b[2Jb": run}))
    assert "\x1b" not in text
    assert "\x07" not in text


THREE = ["old/a.json", "new/a.json", "new/b.json"]


@cases(
    "files, names",
    (["a.json", "x/b.json"], ["a.json", "b.json"]),
    (["old/run.json", "new/run.json"], ["old", "new"]),
    (["old/1/run.json", "new/1/run.json"], ["old", "new"]),
    (THREE, THREE),
    (["a/1/run.json", "b/2/run.json"], ["a/1", "b/2"]),
    (["a.json", "a.json"], ["a.json", "a.json"]),
)
def test_files_are_told_apart(files: list[str], names: list[str]) -> None:
    assert file_names(files) == names
