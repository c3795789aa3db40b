"""`scripts/bench mutants [N [SEED]]`: puts N small bugs into the code, each alone, and tests it.

Each of the 200 mutants, unless N is given, is one change of a line (mutation.py), in the rooms
whose results are numbers, texts and decisions. It is written into a copy of the checkout. There the
quick tests run that reach its module, the nearest and fastest first, until one fails
(mutant_tests.py). What survives is printed. Mutants that change nothing that matters are named in equivalent_mutants.toml, each with the reason.

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
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.mutation import Mutant, Place, places_in
from tests.cli.program import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PURE = ("planning", "numbers", "results", "render", "settings")
# Of these rooms the parts that compute, and start no process
PARTS = (
    *("jobs/balance", "jobs/compare", "jobs/measure", "jobs/plan", "jobs/probe"),
    *("jobs/layers", "jobs/durations.py", "jobs/estimate.py", "jobs/phases.py"),
    *("training/change_text.py", "training/device_split.py", "training/load.py"),
    *("training/epoch_times.py", "training/noise_text.py", "training/step_clock.py"),
    *("engine/batch_sizes.py", "engine/device_time.py", "engine/pace.py"),
    *("engine/step/marks.py", "engine/step/pack_size.py", "engine/step/points.py"),
    *("engine/step/rows.py", "engine/step/sums.py", "engine/step/vectors.py"),
)
_EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
# What has no quick tests of a module: they run programs, or train.
_NOT_QUICK = tuple(
    f"tests/{name}"
    for name in (
        *("bench", "cli", "fake_gpu", "faults", "guide", "stand_in", "workers"),
        *("test_bench", "test_fake", "test_fuzz", "test_kills", "test_scripts"),
        "render/test_report_browser",
    )
)
_TRAINING = ("engine", "training")  # only for mutants of these rooms
_WITHIN_S = 900.0  # on a machine that is busy with other things
_COSTS = ROOT / "build" / "mutants.json"
_FAR = 3  # imports, beyond which a test says little of a module


class Tree:
    """A copy of the checkout, in which tests run with a mutant."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "checkout"
        self._state = folder / "state.json"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, self._root, ignore=ignored)
        self._imports = {}
        for path in sorted(self._root.glob("*/**/*.py")):
            self._imports[str(path.relative_to(self._root))] = _imported(path)
        # By file and by its text, what each of its quick tests takes; kept for the next campaign
        self._costs_s: dict[str, dict[str, float]] = {}
        if _COSTS.exists():
            self._costs_s = json.loads(_COSTS.read_text())

    def finder(self, mutant: Mutant) -> str | None:
        """The test that finds a mutant, or None: one that imports the module, else another one."""
        near = self._tests_near(mutant.path)
        nearest = {path: d for path, d in near.items() if d <= 1}
        others = {path: d for path, d in near.items() if 1 < d <= _FAR}
        for files in (nearest, others):
            costs_s: dict[str, float] = {}
            for path in files:
                costs_s |= self._learned(path)
            with self._mutated(mutant):
                failed = self._run(list(files), {"near": files, "costs_s": costs_s})
            if failed is not None:
                return failed
        return None

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._root / mutant.path
        sound = path.read_text()
        path.write_text(mutant.source)
        try:
            yield
        finally:
            path.write_text(sound)

    def _learned(self, path: str) -> dict[str, float]:
        """What each quick test of a file takes that passes without a mutant."""
        key = f"{path} {hashlib.sha256((self._root / path).read_bytes()).hexdigest()}"
        if key not in self._costs_s:
            self._run([path], {})
            self._costs_s[key] = json.loads(self._state.read_text()).get("learned", {})
            _COSTS.parent.mkdir(exist_ok=True)
            _COSTS.write_text(json.dumps(self._costs_s))
        return self._costs_s[key]

    def _run(self, files: Sequence[str], how: dict[str, object]) -> str | None:
        """Runs tests until one fails; returns that, or what else ended it."""
        if not files:
            return None
        self._state.write_text(json.dumps(how))
        words = ["-q", "-p", "no:cacheprovider", "-p", "tests.bench.mutant_tests"]
        own = {"MUTANT_STATE": str(self._state), "PYTHONPATH": str(self._root)}
        try:
            code = subprocess.run(
                [sys.executable, "-m", "pytest", *words, *files],
                cwd=self._root,
                env=os.environ | own,
                capture_output=True,
                timeout=_WITHIN_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"it takes over {_WITHIN_S:.0f} s"
        if code in (0, 5):  # all passed, or there was none
            return None
        failed: str | None = json.loads(self._state.read_text()).get("failed")
        return failed or f"pytest ended with {code}"

    def _tests_near(self, module: str) -> dict[str, int]:
        """The files of tests that may find a mutant of a module, each by how near it is.

        That is how many imports lead from it to the module; those in the mirrored folder are near.
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
            if is_test and not is_slow:
                near[path] = distance - (folder == room)
        return near


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
        one["mutant"] for one in tomllib.loads(_EQUIVALENT.read_text())["known"]
    }
    places: list[Place] = []
    for room in rooms:
        for path in sorted(
            ROOT.glob(f"gpubalance/{room}{'' if '.' in room else '/**/*.py'}")
        ):
            places += places_in(str(path.relative_to(ROOT)), path.read_text())
    random.Random(seed).shuffle(places)
    drawn = 0
    for place in places:
        mutant = place.mutant((ROOT / place.path).read_text())
        if mutant is not None and mutant.key not in equivalent and drawn < count:
            drawn += 1
            yield mutant


def campaign(rooms: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """A line for each mutant that survives, and one with how many were found."""
    tried = survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        for mutant in _drawn(rooms, count, seed):
            tried += 1
            finder = tree.finder(mutant)
            if os.environ.get("MUTANTS_VERBOSE"):
                yield f"{mutant.path}:{mutant.line} {mutant.what}: {finder}"
            if finder is None:
                survived += 1
                yield f"{mutant.path}:{mutant.line}, {mutant.what}, survived:"
                yield from (f"- {line}" for line in mutant.before.splitlines())
                yield from (f"+ {line}" for line in mutant.after.splitlines())
    found = tried - survived
    yield f"{found} of {tried} mutants found ({found / max(1, tried):.1%}); seed {seed}"


def main(count: int = 200, seed: int | None = None) -> Iterator[str]:
    """Draws mutants of all rooms that compute."""
    if seed is None:
        seed = random.randrange(10**6)
    yield from campaign((*PURE, *PARTS), count, seed)
