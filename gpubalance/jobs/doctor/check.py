"""The checks that doctor makes: what each is called, and the ways in which one can end."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from gpubalance.errors import GpubalanceError, OutOfMemory, machine_fault
from gpubalance.remedies import known_error
from gpubalance.results.checkup import Check, Status

# By the ID in /etc/os-release, or one of those that it is like; what must be enabled before stands
# in brackets.
_INSTALLS = {
    "ubuntu": "sudo ubuntu-drivers install",
    "debian": "sudo apt-get install nvidia-driver (from the component non-free)",
    "fedora": "sudo dnf install akmod-nvidia (from RPM Fusion)",
    "arch": "sudo pacman -S nvidia",
}
T = TypeVar("T")
_MENDED_BY_A_DRIVER = ("no-driver", "driver-too-old")  # a new one
# Of codes that are not what they are called.
_WHAT = {
    "no-gpu": "GPU",
    "nvml": "NVML",
    "gpu": "GPU",
    "processes": "other processes",
    "ecc": "memory errors",
    "host-memory": "memory of the host",
    "tensorflow": "TensorFlow",
    "tensorflow-driver": "TensorFlow's CUDA",
    "cuda-libraries": "CUDA libraries",
    "cudnn": "cuDNN",
    "compute-capability": "TensorFlow's code",
    "tensorflow-devices": "TensorFlow's GPUs",
    "pcie-link": "PCIe link",
    "peer-to-peer": "copies between devices",
    "all-reduce": "all-reduce",
}


def install_command(release: Mapping[str, str] | None = None) -> str:
    """The command; empty for another distribution.

    `release` takes the place of this machine's /etc/os-release.
    """
    if release is None:
        try:
            release = platform.freedesktop_os_release()
        except OSError:
            return ""
    for name in [release.get("ID", ""), *release.get("ID_LIKE", "").split()]:
        if name in _INSTALLS:
            return _INSTALLS[name]
    return ""


def check(code: str, status: Status, detail: str, next_: str | None = None) -> Check:
    """A check's result; `next_` is what to do about it."""
    return Check(
        code=code,
        status=status,
        what=_WHAT.get(code, code.replace("-", " ")),
        detail=detail,
        next=next_,
    )


def ok(code: str, detail: str) -> Check:
    """The result of a check that found nothing wrong."""
    return check(code, "ok", detail)


def skipped(code: str, why: str) -> Check:
    """The result of a check that was not made."""
    return check(code, "skipped", why)


def explained(code: str, row: str, detail: str, status: Status = "failure") -> Check:
    """A fault, with the cause and the remedy from this row of known errors."""
    return check(code, status, f"{detail}: {known_error(row).cause}", remedy_of(row))


def remedy_of(row: str) -> str:
    """The remedy from this row of known errors, with a command here if a new driver is one."""
    remedy = known_error(row).remedy
    if row in _MENDED_BY_A_DRIVER:
        remedy = f"{remedy}\n{install_command()}".strip()
    return remedy


def failed(code: str, error: Exception, where: str = "") -> Check:
    """The failure of a check that raised this error."""
    if isinstance(error, OutOfMemory) and error.fault is not None:
        error = error.fault  # nothing smaller is tried here
    if isinstance(error, GpubalanceError):
        cause = f": {error.cause}" if error.cause else ""
        return check(
            code, "failure", f"{where}{error.message}{cause}", error.remedy or None
        )
    row = machine_fault(error)
    detail = f"this check itself failed: {type(error).__name__}: {error}"
    return check(code, "failure", detail, row.remedy if row else None)


def guarded(code: str, findings: Iterable[T], where: str = "") -> Iterator[T | Check]:
    """What is found, and a failed check if that raises: it is no reason to lose the others."""
    try:
        yield from findings
    except Exception as error:  # noqa: BLE001
        yield failed(code, error, where)
