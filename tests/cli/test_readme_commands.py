"""The README's commands, as they stand there: each runs, and leaves what the next one reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from gpubalance.devices.profile import simulated_devices
from gpubalance.jobs.keep.saved_probes import save
from gpubalance.results.common import Model
from tests.cli.program import QUICK_PAIR, ROOT, TINY, gpubalance
from tests.jobs.probes import probe_of

_PAIR = "configs/gtx1080ti-gtx1080.toml"
# What installs from a network, serves until it is ended, or is this very test.
_NOT_RUN = ("pip", "tensorboard", "scripts/test")
_MODEL = ["--model", TINY]
_SPLIT = ["--round-duration", "0.3", "--rounds", "1"]
_SHORTER = {
    "probe": [*_MODEL, "--duration", "0.2", "--max-batch", "64"],
    "run": [*_MODEL, "--windows", "1", "--duration", "0.3", "--baseline", "none", "--overwrite"],
    "balance": [*_MODEL, *_SPLIT, "--windows", "1", "--duration", "0.3", "--overwrite"],
    "report": ["--overwrite"],
}


def commands() -> list[list[str]]:
    """Every command of the README's console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines if not line.startswith(_NOT_RUN)]


def quick(command: list[str]) -> list[str]:
    """The same on faster devices, for shorter. What the README measures is not what is tested."""
    program, name, *rest = command
    assert program in ("gpubalance", "scripts/gpubalance")
    rest = [
        {_PAIR: QUICK_PAIR, "820": "120", "568": "80", "512": "96", "355": "64", "1384": "96"}.get(w, w) for w in rest
    ]
    if "--gpus" in rest and "--simulate" not in rest:  # on cards of one's own
        rest += ["--simulate", QUICK_PAIR]
    return [name, *rest, *_SHORTER.get(name, [])]


def test_the_commands_of_the_readme_run_one_after_the_other(tmp_path: Path) -> None:
    known = probe_of(simulated_devices(QUICK_PAIR)[0])
    tiny = Model(name="tiny", parameters=36, gradient_bytes=144)
    settings = known.settings.model_copy(update={"model": TINY})
    save(known.model_copy(update={"settings": settings, "model": tiny}))
    assert len(commands()) >= 9
    for command in commands():
        done = gpubalance(*quick(command), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout or "wrote" in done.stderr
    assert {path.name for path in tmp_path.glob("*.json")} == {
        "probe.json",
        "plan.json",
        "chosen.json",
        "tutorial.json",
    }
    assert {path.name for path in tmp_path.glob("*.html")} == {"pair.html", "report.html"}
