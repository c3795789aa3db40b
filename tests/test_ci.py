"""What runs this project's tests elsewhere.

That is .ci/run, and the workflow that calls it on each Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from gpubalance import __version__
from tests.cli.program import ROOT
from tests.guide.documents import read
from tests.support.checkout import make_checkout

FILES = ("engine/test_exact", "training/test_exact", "training/test_told")
EXACT = [f"tests/{name}.py" for name in FILES]
TOOLS = ["bash", "sh", "readlink", "dirname", "cksum", "cat", "mktemp", "tail", "rm"]
TOOLS += ["grep", "timeout"]
FAILS = "echo 'E: no network' >&2; exit 100"
INSTALLS = [
    ("0", FAILS, "Debian's chromium can't be installed (E: no network): "),
    ("0", "exit 0", "Debian's chromium does not start ("),
    ("1000", "exit 1", "no browser: "),
]


@pytest.mark.parametrize(("user", "installs", "told"), INSTALLS)
def test_what_can_not_be_installed_is_told_in_a_line_and_the_tests_run(
    user: str, installs: str, told: str, tmp_path: Path
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    checkout.be_installed()
    shutil.copytree(ROOT / ".ci", checkout.folder / ".ci")
    there = tmp_path / "bin"
    there.mkdir()
    for tool in TOOLS:
        (there / tool).symlink_to(str(shutil.which(tool)))
    for name, does in (("id", f"echo {user}"), ("apt-get", installs)):
        (there / name).write_text(f"#!/bin/sh\n{does}\n")
        (there / name).chmod(0o755)
    command = [checkout.folder / ".ci" / "run"]
    no_index = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    variables = checkout.env | no_index | {"PATH": str(there)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    system = Path("/etc/os-release")
    is_debian = system.exists() and "\nID=debian\n" in system.read_text()
    of_pages, *others, of_site, again = re.findall("(?m)^ci: .*", done.stderr)
    assert of_site == "ci: the manual's site"
    builds_it = "/scripts/site.py" in done.stdout
    assert builds_it == (sys.version_info >= (3, 11))
    assert again == "ci: the tests of exactness once more, without oneDNN"
    assert '"-m", "not campaign"]' in done.stdout  # all but campaigns
    for path in EXACT:
        assert done.stdout.count(path) == 1
    assert of_pages.startswith(f"ci: {told if is_debian else 'no browser: '}")
    assert of_pages.endswith("the tests of pages are skipped")
    of_ssh = "ci: Debian's openssh-server can't be installed (E: no network): the tests over ssh are skipped"
    if find_spec("torch") is None:  # the checkout's Python is this one
        of_torch = others.pop()
        begins = "ci: PyTorch's build for CPUs can't be installed (ERROR: No matching"
        assert of_torch.startswith(begins)
        assert of_torch.endswith("): its tests are skipped")
    assert others == ([of_ssh] if is_debian and "no network" in installs else [])
    assert done.returncode == 0


def test_the_workflow_calls_it_on_every_python_that_is_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["test"]
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == promised
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_the_sites_workflow_publishes_what_the_script_builds() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["scripts/docs"]
    assert steps[-1]["with"] == {"path": "build/site"}


def test_a_release_has_the_changelogs_section_of_its_version() -> None:
    """Not of another one than the package's, which a wrong tag would name."""
    script = str(ROOT / "scripts/release-notes")
    done = subprocess.run([script, __version__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in done.stdout
    wrong = subprocess.run([script, "9.9.9"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "the package is not version 9.9.9\n"


def test_the_guides_workflow_is_one() -> None:
    (block,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", read("ci"))
    (job,) = yaml.safe_load(block)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert re.findall("(?m)^gpubalance (\\w+)", "\n".join(commands)) == ["check", "run"]
