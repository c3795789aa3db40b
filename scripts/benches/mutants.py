"""`scripts/bench mutants [N [SEED]]`: puts N small bugs into the code, each alone, and tests it.

Each of the 200 mutants, unless N is given, is one change of a line (mutation.py), in the rooms
whose results are numbers, texts and decisions. In a copy of the checkout the quick tests run that reach
its module, the nearest and fastest first, until one fails (mutant_tests.py). All mutants share one
process. What survives in it is tried once more, from the disk, unless it is within a function,
which that process takes over wholly. What survives that meets the tests of the first tier that run
programs or train (`_SLOW`), and is printed if it survives them too.
Mutants that change nothing that matters are named in equivalent_mutants.toml, each with the reason.

Neither mutmut nor cosmic-ray fits. mutmut 3 first runs all tests in its own process to learn which
of them reach which function: that takes twenty minutes here, and they start processes of their own.
Then it tries all mutants, some twenty thousand. cosmic-ray has one command for all mutants of a
session, and changes the checkout itself. Neither draws some of them by a seed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benches.mutation import Mutant, Place, places_in
from tests.cli.program import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PURE = ("planning", "numbers", "results", "render", "settings")
# Of these rooms the parts that compute, and start no process
PARTS = (
    *("jobs/balance", "jobs/compare", "jobs/measure", "jobs/plan", "jobs/probe"),
    *("jobs/layers", "jobs/phases.py"),
    *("training/step_warnings.py", "training/device_split.py", "training/split.py"),
    *("training/monitor.py", "engine/datasets.py", "engine/replicas.py"),
    *("engine/pace.py", "engine/step/sums.py", "engine/step/functions.py"),
    *("engine/step/points.py", "engine/step/gradients.py"),
)
# How long a dash is and where a text begins: a look at the chart judges that, and no test.
_LOOKS = "gpubalance/render/report/charts/"
_EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
# What has no quick tests of a module: they run programs, or train.
_NOT_QUICK = tuple(
    f"tests/{name}"
    for name in (
        *("cli", "fake_gpu", "faults", "guide", "stand_in", "workers"),
        *("test_fake", "test_scripts", "render/test_report_browser"),
    )
)
_TRAINING = ("engine", "training")  # only for mutants of these rooms
# The folders of tests that run what is in a room whole, beside the one of its name
_SLOW = {
    "engine": ("training", "fake_gpu"),
    "jobs": ("cli", "fake_gpu"),
    "numbers": ("cli",),
    "planning": ("cli",),
    "render": ("cli",),
    "results": ("cli",),
    "settings": ("cli",),
    "training": ("cli",),
}
_TIER = "not campaign and not full"
_COSTS = ROOT / "build" / "mutants.json"
# The tests of a command run after all others; its name, if the part has another one.
_LAST = 99
_COMMANDS = {"measure": "run", "plan": "balance"}
# Decorators whose functions can be taken over
_PLAIN = {
    "cached_property",
    "classmethod",
    "contextmanager",
    "property",
    "staticmethod",
}
_FAR = 3  # imports, beyond which a test says little of a module


class Tree:
    """A copy of the checkout, in which tests run with mutants."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "checkout"
        self._state = folder / "state.json"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, self._root, ignore=ignored)
        self._imports = {}
        for path in sorted(self._root.glob("*/**/*.py")):
            self._imports[str(path.relative_to(self._root))] = _imported(path)
        # The slow tests that fail in this copy without a mutant, by their folders
        self._failing: dict[tuple[str, ...], list[str]] = {}
        # By file and its text, what each of its quick tests takes: kept for the next campaign
        self._costs_s: dict[str, Any] = {}
        if _COSTS.exists():
            self._costs_s = json.loads(_COSTS.read_text())

    def finders(self, mutants: Sequence[Mutant]) -> list[str | None]:
        """For each mutant the test that finds it, or None."""
        asked = [(mutant, mutant.source) for mutant in mutants]
        found = self._run(asked)
        for number, mutant in enumerate(mutants):
            if found[number] is None and not _is_taken_over(mutant):
                with self._mutated(mutant):
                    (found[number],) = self._run([(mutant, None)])
        for number, mutant in enumerate(mutants):
            if found[number] is None:
                found[number] = self._slow_finder(mutant)
        return found

    def _slow_finder(self, mutant: Mutant) -> str | None:
        """The first test that fails of those that take long; None if none does."""
        room = mutant.path.split("/")[1]
        folders = tuple(f"tests/{name}" for name in (room, *_SLOW[room]))
        if folders not in self._failing:
            self._failing[folders] = self._failures(folders)
        with self._mutated(mutant):
            found = self._failures(folders, *_without(self._failing[folders]), "-x")
        return next(iter(found), None)

    def _failures(self, folders: Sequence[str], *words: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-n", "2", "--dist", "loadgroup", "-m", _TIER]
        done = subprocess.run(
            [*command, *words, *folders],
            cwd=self._root,
            env=os.environ | {"PYTHONPATH": str(self._root)},
            capture_output=True,
            text=True,
            check=False,
        )
        return re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout)

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._root / mutant.path
        sound = path.read_text()
        path.write_text(mutant.source)
        try:
            yield
        finally:
            path.write_text(sound)

    def _run(self, asked: Sequence[tuple[Mutant, str | None]]) -> list[str | None]:
        """Runs tests for mutants, in one process, which takes sources over or has them on disk."""
        mutants = []
        files: dict[str, None] = {}
        for mutant, source in asked:
            near = self._tests_near(mutant.path)
            files |= dict.fromkeys(near)
            mutants.append({"path": mutant.path, "source": source, "near": near})
        keys = {path: self._key(path) for path in files}
        known = {
            path: self._costs_s[key]
            for path, key in keys.items()
            if key in self._costs_s
        }
        self._state.write_text(json.dumps({"mutants": mutants, "costs_s": known}))
        words = ["-q", "-p", "no:cacheprovider", "-p", "scripts.benches.mutant_tests"]
        words += ["-m", _TIER]
        own = {"MUTANT_STATE": str(self._state), "PYTHONPATH": str(self._root)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words, *files],
                cwd=self._root,
                env=os.environ | own,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:  # an interrupt loses nothing of what took long
            state = json.loads(self._state.read_text())
            for path, costs_s in state["costs_s"].items():
                self._costs_s[keys[path]] = costs_s
            _COSTS.parent.mkdir(exist_ok=True)
            _COSTS.write_text(json.dumps(self._costs_s))
        found: list[str | None] = state.get("found", [])
        if (
            not found and len(asked) == 1 and files
        ):  # not even the tests can be collected
            ended = done.stdout.strip().rpartition("\n")[2]
            return [ended or f"pytest ended with {done.returncode}"]
        return found + [None] * (len(asked) - len(found))

    def _key(self, path: str) -> str:
        return f"{path} {hashlib.sha256((self._root / path).read_bytes()).hexdigest()}"

    def _tests_near(self, module: str) -> dict[str, int]:
        """The files of tests that may find a mutant of a module, each by how near it is.

        That is how many imports lead from it to the module; those in the mirrored folder are near,
        and the tests of a part's own command come last: they run it whole, in the tests' process.
        """
        room = module.split("/")[1]
        users: dict[str, list[str]] = {}
        for path, imported in self._imports.items():
            for target in imported:
                users.setdefault(target, []).append(path)
        distances = {module: 0}
        waiting = deque([module])
        while waiting:
            path = waiting.popleft()
            for user in users.get(path, ()):
                if user not in distances:
                    distances[user] = distances[path] + 1
                    waiting.append(user)
        near = {}
        for path, distance in distances.items():
            folder = path.split("/")[1]
            is_test = path.startswith("tests/") and "/test_" in path
            is_slow = folder in _TRAINING and folder != room
            is_slow |= path.startswith(_NOT_QUICK)
            is_mirrored = folder == room
            is_near = distance <= _FAR or (is_mirrored and room not in _TRAINING)
            if is_test and not is_slow and is_near:
                near[path] = distance - is_mirrored
        if room in ("jobs", "render", "results"):
            command = Path(module).stem if room != "jobs" else module.split("/")[2]
            command = _COMMANDS.get(command, command)
            own = f"tests/cli/test_{command.removesuffix('.py')}.py"
            if own in self._imports:
                near[own] = _LAST
        return near


def _without(tests: Sequence[str]) -> list[str]:
    return [word for test in tests for word in ("--deselect", test)]


def _is_taken_over(mutant: Mutant) -> bool:
    """Whether it is within a plain function, which `mutant_tests.py` takes over wholly."""
    for node in ast.walk(ast.parse(mutant.source)):
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(one) for one in node.decorator_list}
            first = node.body[0].lineno
            if names <= _PLAIN and first <= mutant.line <= (node.end_lineno or 0):
                return True
    return False


def _imported(path: Path) -> set[str]:
    """The files of gpubalance and of tests that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    files = set()
    for name in names:
        if name.startswith(("gpubalance", "tests")):
            files |= {
                f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")
            }
    return files


def _drawn(rooms: Sequence[str], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants of these rooms that are not known to be equivalent."""
    equivalent = {
        one["mutant"] for one in tomllib.loads(_EQUIVALENT.read_text()).get("known", [])
    }
    places: list[Place] = []
    for room in rooms:
        for path in sorted(
            ROOT.glob(f"gpubalance/{room}{'' if '.' in room else '/**/*.py'}")
        ):
            name = str(path.relative_to(ROOT))
            for place in places_in(name, path.read_text()):
                if not (place.what == "constant" and name.startswith(_LOOKS)):
                    places.append(place)
    random.Random(seed).shuffle(places)
    drawn = 0
    for place in places:
        mutant = place.mutant((ROOT / place.path).read_text())
        if mutant is not None and mutant.key not in equivalent:
            drawn += 1
            yield mutant
        if drawn == count:
            return


def campaign(rooms: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """A line for each mutant that survives, and one with how many were found."""
    mutants = list(_drawn(rooms, count, seed))
    with tempfile.TemporaryDirectory() as folder:
        finders = Tree(Path(folder)).finders(mutants)
    for mutant, finder in zip(mutants, finders, strict=True):
        if finder is None:
            yield f"{mutant.path}:{mutant.line}, {mutant.what}, survived:"
            yield from (f"- {line.rstrip()}" for line in mutant.before.splitlines())
            yield from (f"+ {line.rstrip()}" for line in mutant.after.splitlines())
            yield f"mutant = {json.dumps(mutant.key, ensure_ascii=False)}"
    found = len(mutants) - finders.count(None)
    part = found / max(1, len(mutants))
    yield f"{found} of {len(mutants)} mutants found ({part:.1%}); seed {seed}"


def main(count: int = 200, seed: int | None = None) -> Iterator[str]:
    """Draws mutants of all rooms that compute."""
    if seed is None:
        seed = random.randrange(10**6)
    yield from campaign((*PURE, *PARTS), count, seed)
