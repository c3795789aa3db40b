"""Device names, UUIDs and numbers as a driver may give them: `python -m tests.bench.fuzz_names N SEED`, for `fuzz`.

The NVML stand-in reads its script when it is loaded, so each case is a fork of this process, which has not loaded it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.bench.fuzz_input import number, text
from tests.bench.in_process import apart, program
from tests.stand_in import TWO_UNLIKE_GPUS

_FIELDS = (
    "uuid",
    "name",
    "bus",
    "memory",
    "capability",
    "mig",
    "process compute",
    "error all",
    "error name",
    "slice 0 uuid",
)
_COMMANDS = (
    ("devices",),
    ("devices", "--json"),
    ("devices", "--redact"),
    ("run", "--gpus", "0", "1", "--duration", "0.1"),
    ("plan", "--gpus", "GPU-1080"),
)


@st.composite
def scripts(draw: Any) -> str:
    """The script of two GPUs with lines put before it: of two for one field the first counts."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        field = draw(st.sampled_from(_FIELDS))
        value = draw(st.one_of(text, text, number.map(str), st.sampled_from(["1", "999", "15"])))
        value = "".join(f"\\x{byte:02x}" for byte in value.encode("utf-8", "surrogatepass")[:2000])
        if field in ("memory", "capability", "mig", "error all", "error name"):
            value = draw(st.sampled_from(["0 0", "1 1", "-1", "15", "999", "18446744073709551615 0", "4 3"]))
        elif field == "process compute":
            pid, size = draw(st.sampled_from(["1", "77", "self"])), draw(st.sampled_from(["none", "1", "99999999"]))
            value = f"{pid} {size} {value}"
        lines.append(f"gpu {draw(st.integers(0, 1))} {field} {value}")
    return "\n".join(lines) + "\n" + TWO_UNLIKE_GPUS


def check(script: str, command: tuple[str, ...]) -> None:
    Path("nvml.txt").write_text(script, encoding="utf-8", errors="replace")
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["NVML_STAND_IN"] = "nvml.txt"
            program(command).check(*command)
        except BaseException:  # noqa: BLE001  (told to the parent)
            Path("fault").write_text(traceback.format_exc(), errors="replace")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, Path("fault").read_text() if Path("fault").exists() else f"status {status}"


def main(count: int, seed: int) -> None:
    from tests.bench.fuzz import run

    with tempfile.TemporaryDirectory() as folder, apart(Path(folder)):
        cases, fault = run(("names", 1.0, check, (scripts(), st.sampled_from(_COMMANDS))), count, seed)
    print(cases)
    print(fault[-3000:])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
