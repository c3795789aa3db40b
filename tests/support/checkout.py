"""A checkout with the real scripts, which install a stand-in package: no TensorFlow, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONSTRAINTS = "scripts/constraints.txt"

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "gpubalance"
version = "1"
[project.optional-dependencies]
cuda = []
dev = []
docs = []
"""

# A build that, given GATE, says that it has begun and waits to be let through.
# So pip is surely under way then.
BACKEND = """
import os, pathlib, time, zipfile

def build_editable(folder, settings=None, metadata=None):
    if gate := os.environ.get("GATE"):
        pathlib.Path(gate + ".reached").touch()
        while not pathlib.Path(gate).exists():
            time.sleep(0.02)
    info = "gpubalance-1.dist-info"
    with zipfile.ZipFile(f"{folder}/gpubalance-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gpubalance.pth", os.getcwd())
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: gpubalance\\nVersion: 1\\n"
                       "Provides-Extra: cuda\\nProvides-Extra: dev\\nProvides-Extra: docs\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ngpubalance = gpubalance:main\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return "gpubalance-1-py3-none-any.whl"
"""

# Stands for the program and for each tool that the scripts start.
# It says what it was, and how it was started.
PROGRAM = """
import json, os, sys

def main():
    said = {"args": sys.argv[1:], "file": __file__, "cwd": os.getcwd(), "prefix": sys.prefix}
    said["started_as"] = os.environ.get("GPUBALANCE_STARTED_AS")
    print(json.dumps(said))
    name = os.path.basename(__file__).removesuffix(".py").upper()
    sys.exit(int(os.environ.get(f"{name}_EXIT", "0")))

if __name__ == "__main__":
    main()
"""

Started = subprocess.Popen[str]


class Checkout:
    """A folder with the real scripts and the stand-in package."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.elsewhere = folder, folder.parent
        kept = [name for name in os.environ if name.startswith("PIP_")]
        self.env = {name: os.environ[name] for name in (*kept, "PATH")}
        own = {"GPUBALANCE_PYTHON": sys.executable, "GPUBALANCE_EXTRAS": ""}
        self.env |= own | {"HOME": str(folder.parent)}

    def has(self, extra: str) -> bool:
        return (self.folder / f".venv/.gpubalance,{extra},").exists()

    def start(
        self, script: str, *args: str, before: tuple[str, ...] = (), **env: str
    ) -> Started:
        return subprocess.Popen(
            [*before, str(self.folder / "scripts" / script), *args],
            cwd=self.elsewhere,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # no terminal, and a group of its own to kill
        )

    def run(
        self, script: str, *args: str, before: tuple[str, ...] = (), **env: str
    ) -> tuple[int, str, str]:
        process = self.start(script, *args, before=before, **env)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def be_installed(self) -> None:
        """Leaves what installs for `dev` and `docs` leave, without pip, which takes seconds."""
        python = self.folder / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\nexec '{sys.executable}' \"$@\"\n")
        python.chmod(0o755)
        files = [self.folder / name for name in ("pyproject.toml", CONSTRAINTS)]
        installed = subprocess.check_output(["cksum", *files], text=True)
        made_for = f"{self.folder}\n{sys.executable}\n"
        (self.folder / ".venv/.gpubalance").write_text(made_for)
        for extra in ("dev", "docs"):
            stamp = self.folder / f".venv/.gpubalance,{extra},"
            stamp.write_text(installed.rstrip("\n"))

    def touch_constraints(self) -> None:
        """Makes the next use an update, for which pip runs in the same environment."""
        with (self.folder / CONSTRAINTS).open("a") as file:
            file.write("# changed\n")

    def installs(self, gate: Path) -> Started:
        """Starts the program, whose update waits for that file."""
        self.touch_constraints()
        process = self.start("gpubalance", GATE=str(gate))
        end = time.monotonic() + 60
        while not gate.with_suffix(".reached").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        return process


def make_checkout(folder: Path) -> Checkout:
    (folder / "scripts").mkdir(parents=True)
    for name in ("setup.sh", "gpubalance", "test", "check", "bench", "docs"):
        shutil.copy(SCRIPTS / name, folder / "scripts" / name)
    (folder / CONSTRAINTS).touch()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    tools = ("pytest", "ruff", "mypy", "scripts/benches", "scripts/site")
    for name in ("gpubalance", *tools):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(PROGRAM)
    return Checkout(folder)
