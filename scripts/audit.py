"""`scripts/check --audit`: asks pip-audit for known faults in the packages of constraints.txt.

The packages are those of scripts/constraints.txt. It needs a network, as the list of faults is
elsewhere and changes daily. Without one it says that nothing was audited, and does not fail.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_WITHIN_S = 300


def main() -> int:
    if importlib.util.find_spec("pip_audit") is None:
        print(
            "audit: nothing was audited, as pip-audit is not installed: .venv/bin/python -m "
            "pip install pip-audit"
        )
        return 0
    found = _ask()
    audited = [item for item in found if "vulns" in item]
    if not audited:
        print("audit: nothing was audited, as pip-audit reached no list of faults")
        return 0
    faults = [(one, fault) for one in audited for fault in one["vulns"]]
    for one, fault in faults:
        mended = ", ".join(fault.get("fix_versions", [])) or "no version yet"
        print(
            f"audit: {one['name']} {one['version']}: {fault['id']}, mended in {mended}"
        )
    left = (
        f"; {len(found) - len(audited)} are not in the list"
        if len(found) > len(audited)
        else ""
    )
    if not faults:
        print(
            f"audit: {len(audited)} package{'s' * (len(audited) > 1)}, none with a known "
            f"fault{left}"
        )
    return 1 if faults else 0


def _ask() -> list[dict[str, Any]]:
    """Each pinned package, with its faults or why they are unknown; empty without an answer.

    The faults are under `vulns`.
    """
    pinned = str(Path(__file__).with_name("constraints.txt"))
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--no-deps",
        "--disable-pip",
        "-f",
        "json",
        "-r",
        pinned,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_WITHIN_S
        )
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return []


if __name__ == "__main__":
    sys.exit(main())
