"""The scripts' setup, on a checkout that installs a stand-in package: see checkout.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import command_in_terminal
from tests.support.checkout import BACKEND, PYPROJECT, Checkout, make_checkout
from tests.support.known import known

pytestmark = pytest.mark.xdist_group("scripts")


@pytest.fixture(scope="module")
def first_use(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Checkout, tuple[int, str, str]]:
    checkout = make_checkout(tmp_path_factory.mktemp("scripts") / "a checkout")
    # stdin is not only no terminal, but closed.
    closed = ("sh", "-c", '"$0" "$@" <&-')
    return checkout, checkout.run("gpubalance", "a b", "--c", before=closed)


@pytest.fixture
def checkout(first_use: tuple[Checkout, tuple[int, str, str]]) -> Checkout:
    """One that is installed, whatever another test has left of it."""
    first_use[0].run("gpubalance")
    return first_use[0]


@pytest.mark.full
def test_first_use_installs(first_use: tuple[Checkout, tuple[int, str, str]]) -> None:
    checkout, (code, out, err) = first_use
    assert code == 0, err
    said = json.loads(out)
    assert said["args"] == ["a b", "--c"]
    assert said["cwd"] == str(checkout.elsewhere)
    assert said["file"] == str(checkout.folder / "gpubalance.py")
    venv = checkout.folder / ".venv"
    assert err.splitlines() == [
        "gpubalance: making a Python environment, some seconds",
        f"gpubalance: installing TensorFlow and the rest, about a minute, in {venv}",
        "gpubalance: unpacking the packages, the last step",
    ]


def test_later_uses_start_only_the_program(checkout: Checkout, tmp_path: Path) -> None:
    for tool in ("sh", "readlink", "cksum", "cat"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    link = tmp_path / "linked"
    link.symlink_to(checkout.folder / "scripts/gpubalance")
    here = checkout.env | {"PATH": str(tmp_path), "GPUBALANCE_EXIT": "5"}
    done = subprocess.run([link], env=here, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (5, "")
    said = json.loads(done.stdout)
    assert said["prefix"] == str(checkout.folder / ".venv")
    assert said["started_as"] == str(link)


@pytest.mark.full
def test_dev_is_added_and_serves_the_program_too(checkout: Checkout) -> None:
    kept = checkout.folder / ".venv/kept"
    kept.touch()
    code, out, err = checkout.run("bench", "-x")
    assert code == 0, err
    said = json.loads(out)
    assert (said["args"], said["cwd"]) == (["-x"], str(checkout.elsewhere))
    assert said["file"] == str(checkout.folder / "scripts/benches.py")
    assert checkout.has("dev")
    assert checkout.run("gpubalance")[2] == ""
    checkout.touch_constraints()
    assert "installing" in checkout.run("bench")[2]
    assert checkout.run("gpubalance")[2] == ""
    assert kept.exists()


@pytest.mark.full  # an install of its own
def test_a_cut_off_install_starts_anew(checkout: Checkout, tmp_path: Path) -> None:
    rest = checkout.folder / ".venv/rest"
    rest.touch()
    first = checkout.installs(tmp_path / "gate")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    code, out, err = checkout.run("gpubalance")
    assert (code, rest.exists()) == (0, False), err
    assert json.loads(out)


def test_of_two_at_once_one_waits(checkout: Checkout, tmp_path: Path) -> None:
    first = checkout.installs(tmp_path / "gate")
    second = checkout.start("gpubalance")
    venv = checkout.folder / ".venv"
    waits = f"gpubalance: waits for the install that is under way in {venv}\n"
    assert known(second.stderr).readline() == waits
    (tmp_path / "gate").touch()
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert json.loads(out), err
    assert err == ""  # the second installed nothing


def test_a_failed_install_shows_why_and_loses_nothing(checkout: Checkout) -> None:
    kept = checkout.folder / ".venv/kept"
    kept.touch()
    pyproject = checkout.folder / "pyproject.toml"
    pyproject.write_text(PYPROJECT.replace("dev = []", "dev = []\nbroken ="))
    code, out, err = checkout.run("gpubalance")
    pyproject.write_text(PYPROJECT)
    assert (code, out) == (3, "")
    log = checkout.folder / ".venv/install.log"
    *before, last = err.splitlines()
    assert len(before) > 2
    assert last == f"gpubalance: the install failed: {log} has all that pip said"
    assert "pyproject.toml" in log.read_text()
    assert checkout.run("gpubalance")[0] == 0
    assert kept.exists()


@pytest.mark.full  # an install of its own
def test_a_copy_has_its_own_environment(checkout: Checkout, tmp_path: Path) -> None:
    """A copied checkout has an environment of its own and tells each large download."""
    shutil.copytree(checkout.folder, tmp_path / "copy", symlinks=True)
    copy = Checkout(tmp_path / "copy")
    both = "Version: 1\\nRequires-Dist: large\\nRequires-Dist: small\\n"
    needs = BACKEND.replace("Version: 1\\n", both)
    (copy.folder / "backend.py").write_text(needs)
    served = tmp_path / "served"
    served.mkdir()
    for name, size in (("large", 11_000_000), ("small", 9_000_000)):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        of_wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        info = {"METADATA": metadata, "WHEEL": of_wheel, "RECORD": ""}
        with zipfile.ZipFile(served / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.bin", bytes(size))
            for file, text in info.items():
                wheel.writestr(f"{name}-1.dist-info/{file}", text)
    serves = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), serves) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}"
        copy.env |= {"PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "NO_PROXY": "*"}
        copy.env["PIP_FIND_LINKS"] = index
        code, out, err = copy.run("gpubalance")
        server.shutdown()
    assert code == 0, err
    assert json.loads(out)["file"] == str(copy.folder / "gpubalance.py")
    program = (copy.folder / ".venv/bin/gpubalance").read_text()
    assert str(checkout.folder) not in program
    told = [line for line in err.splitlines() if "downloading" in line]
    assert told == ["gpubalance: downloading large (11.0 MB)"]


@pytest.mark.full  # an install of its own
def test_a_driver_brings_cuda_as_is_told(checkout: Checkout, tmp_path: Path) -> None:
    """A driver brings CUDA and a terminal is told the long steps and not pip's lines."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    path = f"{tmp_path}:{checkout.env['PATH']}"
    variables = checkout.env | {"PYTHONPATH": "", "PATH": path}
    del variables["GPUBALANCE_EXTRAS"]
    script = str(checkout.folder / "scripts/gpubalance")
    status, seen = command_in_terminal([script], 120, environment=variables)
    assert status == 0, seen.written
    installs = "installing TensorFlow with CUDA (3 GB) and the rest, some minutes"
    assert seen.ever(f"gpubalance: {installs}")
    assert seen.ever("gpubalance: unpacking the packages, the last step")
    assert not seen.ever("Installing collected packages")
    assert checkout.has("cuda")


@pytest.mark.full  # an install of its own
def test_a_read_only_checkout_has_its_environment_in_the_cache(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    before = sorted(checkout.folder.rglob("*"))
    read_only: tuple[str, ...] = ()
    if os.geteuid() == 0:  # the modes say nothing to root: a mount must do
        folder = f"'{checkout.folder}'"
        mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
        apart = f"""exec unshare -m sh -c "{mount}"' && exec "$0" "$@"' "$0" "$@" """
        read_only = ("sh", "-c", apart)
        if subprocess.run([*read_only, "true"], capture_output=True).returncode:
            pytest.skip("root, and no mount of its own: nothing is read-only")
    else:
        for path in (checkout.folder, *before):
            path.chmod(path.stat().st_mode & ~0o222)
    cache: Any = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    code, out, err = checkout.run("gpubalance", before=read_only, **cache)
    assert code == 0, err
    assert Path(json.loads(out)["prefix"]).parent == tmp_path / "cache/gpubalance"
    assert sorted(checkout.folder.rglob("*")) == before


def test_an_environment_made_by_hand_is_not_cleared(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    mine = checkout.folder / ".venv/mine"
    mine.parent.mkdir()
    mine.touch()
    code, _, err = checkout.run("gpubalance")
    assert (code, mine.exists()) == (3, True)
    assert "is in the way" in err


BEGINS = f"#!/bin/sh\nexec '{sys.executable}' -c \"import sys; "
PYTHONS = {
    "no Python": "#!/bin/sh\nexit 127\n",
    "without venv": f"{BEGINS}sys.modules['ensurepip'] = None; $3\"\n",
    "too old": f'{BEGINS}sys.version_info = (3, 9); $3"\n',
}


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_without_a_python_it_says_what_is_needed(tmp_path: Path, python: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "readlink", "cksum", "mkdir", "touch", "ls", "flock"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    (folder / "python3").write_text(python)
    (folder / "python3").chmod(0o755)
    checkout = make_checkout(tmp_path / "checkout")
    code, out, err = checkout.run("gpubalance", PATH=str(folder), GPUBALANCE_PYTHON="")
    assert (code, out) == (3, "")
    wanted = "no Python 3.10 to 3.13 with its venv module"
    assert f"{wanted} (Debian, Ubuntu: apt install python3-venv)" in err
    assert err.endswith("GPUBALANCE_PYTHON names another\n")


@pytest.fixture
def installed(tmp_path: Path) -> Checkout:
    """One that needs no install any more."""
    made = make_checkout(tmp_path / "a checkout")
    made.be_installed()
    return made


# Python 3.10 has no NumPy with the types that mypy finds in later ones.
TYPES = ["mypy"] if sys.version_info >= (3, 11) else []
ALL_PROGRAMS = ["ruff", "ruff", *TYPES, "pytest"]
# All tests run several at a time; what a user asks for runs as it is asked for.
AT_ONCE = ["-n", "3", "--dist", "loadgroup", "-m"]
FIRST_TIER = [*AT_ONCE, "not campaign and not full"]
TIMES = "-p", "scripts.benches.processor_time", "--test-times=build/test-times.json"


WORDS = [
    ((), ALL_PROGRAMS, FIRST_TIER),
    (("all",), [*ALL_PROGRAMS, "benches"], [*AT_ONCE, "not campaign"]),
    (("--durations",), ALL_PROGRAMS, [*FIRST_TIER, *TIMES]),
    (("--durations", "tests/x.py"), ["pytest"], [*TIMES, "tests/x.py"]),
    (("tests/x.py", "-k", "a or b"), ["pytest"], ["tests/x.py", "-k", "a or b"]),
    (("all", "tests/x.py"), ["pytest"], ["all", "tests/x.py"]),
]


@pytest.mark.parametrize(("args", "programs", "of_pytest"), WORDS)
def test_test_runs_check_then_pytest(
    installed: Checkout, args: tuple[str, ...], programs: Any, of_pytest: Any
) -> None:
    code, out, err = installed.run("test", *args)
    said = [json.loads(line) for line in out.splitlines()]
    started = {Path(one["file"]).stem: one["args"] for one in said}
    assert [Path(one["file"]).stem for one in said] == programs, err
    assert code == 0
    assert started["pytest"] == of_pytest
    assert started.get("benches") in (None, ["alone", "50"])
    assert {one["cwd"] for one in said} == {str(installed.folder)}


@pytest.mark.parametrize(
    ("args", "ruff", "tests", "expected"),
    [((), "1", "2", 2), (("all",), "1", "0", 1), (("tests/x.py",), "1", "5", 5)],
)
def test_test_exits_as_pytest_does_and_then_as_check(
    installed: Checkout, args: tuple[str, ...], ruff: str, tests: str, expected: int
) -> None:
    code, out, err = installed.run("test", *args, RUFF_EXIT=ruff, PYTEST_EXIT=tests)
    assert '"-m"' in out or args == ("tests/x.py",), err
    assert code == expected
