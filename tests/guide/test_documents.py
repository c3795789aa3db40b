"""README and guide name what there is.

That is commands, options, profile keys, exit codes, fields and errors.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpubalance import errors
from gpubalance.cli.command import defaults
from gpubalance.devices.profile import load_profile
from gpubalance.guide import names, read_chapter
from gpubalance.results.run import Measurement, Run
from gpubalance.settings.device import DeviceProfile, JointProfile
from tests.cli.program import ROOT
from tests.guide.documents import COMMANDS, DOCUMENTS, FOLDER, PROGRAM, flags_of, read
from tests.guide.generate import RESULTS, generated
from tests.support.cases import cases

# pip's, nvidia-smi's, docker's, TensorBoard's, scripts/bench's, Ray's, torchrun's, those of
# our programs for PyTorch
_OTHERS = (
    "overlap force-reinstall gpu-reset shm-size ulimit logdir minutes steps lr rm "
)
_OTHERS += "rehearse next oldest head address node-name num-cpus include-dashboard "
_OTHERS += "generate max-restarts nnodes node-rank nproc-per-node master-addr rdzv-backend multiple prefix times"
_FLAGS_OF_OTHERS = {f"--{name}" for name in _OTHERS.split()}


@pytest.mark.parametrize("name", names())
def test_a_chapter_begins_with_its_title_and_a_line_for_the_list(name: str) -> None:
    chapter = read_chapter(name)
    begins = f"# {chapter.title}\n\n{chapter.summary}\n\n"
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8").startswith(begins)
    assert "\n" not in chapter.title + chapter.summary
    # A terminal of 80 columns, beside the longest name
    assert len(chapter.summary) <= 65
    assert chapter.summary.endswith(".")
    assert "<!--" not in chapter.text


@pytest.mark.parametrize("name", names())
def test_what_comes_from_the_program_is_as_the_program_has_it(name: str) -> None:
    """`python -m tests.guide.generate` writes it again.

    The meaning of a new field is yours to write.
    """
    assert generated(read(name)) == read(name)
    assert not re.search(r"(?m)^\| `\S+` \|.*\|  \|$", read(name))


def test_a_measurement_is_documented_with_its_run() -> None:
    assert set(Measurement.model_fields) <= set(Run.model_fields)


def test_the_guide_has_errors_and_fields() -> None:
    marks = set[str]()
    for name in names():
        marks |= set(re.findall(r"(?m)^<!-- (.*) -->$", read(name)))
    assert marks >= {"troubles", *(f"fields of {kind}" for kind in RESULTS)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_command_option_and_chapter_that_is_named_exists(name: str) -> None:
    """A command in text that is set as code; a sentence may begin with the program's name."""
    text = read(name)
    flags = flags_of(PROGRAM).union(*map(flags_of, COMMANDS.values()))
    shown = r"(?m)(?:`|`scripts/|\$ (?:scripts/)?|^next: )gpubalance ([a-z]+)\b"
    assert set(re.findall(shown, text)) <= set(COMMANDS)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert named - _FLAGS_OF_OTHERS <= flags
    chapters = re.findall(
        r"gpubalance guide ([a-z]+)|gpubalance/guide/(\w+)\.md|\bchapter ([a-z]+)\b",
        text,
    )
    assert {word for found in chapters for word in found if word} <= set(names())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_command_line_has_options_of_its_command(name: str) -> None:
    for line in re.findall(r"gpubalance ((?:[a-z]+) [^`\n]*--[^`\n]*)", read(name)):
        command, *words = line.split()
        flags = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
        assert flags <= flags_of(COMMANDS[command]), line


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_readme_s_table(command: str) -> None:
    assert re.search(rf"(?m)^\| `gpubalance {command}`", read("README"))


def test_each_chapter_is_in_the_readme() -> None:
    for name in names():
        assert f"[{name}](gpubalance/guide/{name}.md)" in read("README")


def test_the_first_thing_to_try_is_the_one_that_is_promised() -> None:
    first = "run --simulate gtx1080ti-gtx1080 --gpus 0 1 --batches 820 568"
    assert read("README").index("```console") < read("README").index(first)


def shown(chapter: str, folder: Path) -> Path:
    """A file with the chapter's example of one."""
    (example,) = re.findall(r"(?s)```toml\n(.*?)```", read(chapter))
    path = folder / "mine.toml"
    path.write_text(example)
    return path


def test_the_config_and_the_profile_that_are_shown_are_such(tmp_path: Path) -> None:
    found = defaults(shown("shell", tmp_path), COMMANDS)
    assert found["run"]["gpus"] == ["0", "1"]
    assert found["balance"]["quiet"] is True
    assert found["plan"] == {"simulate": "quick-pair", "quiet": True}
    assert load_profile(shown("profiles", tmp_path)).device[0].drift[0].factor == 1.4


@cases("key", *DeviceProfile.model_fields, *JointProfile.model_fields)
def test_each_key_of_a_profile_is_documented(key: str) -> None:
    assert re.search(rf"(?m)^\| .*`{key}`.* \| .* \| .* \|$", read("profiles"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name
)
def test_each_profile_that_ships_is_documented(path: Path) -> None:
    assert f"| `{path.stem}` |" in read("profiles")


def test_each_exit_code_is_documented() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {one.exit_code for one in kinds if issubclass(one, errors.GpubalanceError)}
    documented = re.findall(r"(?m)^\| (\d) \| ", read("results"))
    assert codes == {int(code) for code in documented} - {0}


def test_the_readme_says_how_exact_training_is_as_the_chapter_s_table_does() -> None:
    """In float32 alone; the second column has the weights."""
    row = r"(?m)^\| (?!mixed|b?float16)[^|]+ \| (\d\.\de-\d\d) \|"
    rows = re.findall(row, read("exactness"))
    (told,) = re.findall(r"by at most (\S+) in float32", read("README"))
    assert float(told) == max(map(float, rows))
