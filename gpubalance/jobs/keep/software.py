"""What a step's speed depends on besides devices and settings: the host, the software, the user's own code."""

from __future__ import annotations

import platform

from gpubalance._version import __version__
from gpubalance.system.versions import software
from gpubalance.workers.code import own_codes


def software_key(model: str, data: str | None = None) -> str:
    """Text that is equal for the same host, the same versions and the same contents of the user's own files."""
    code = own_codes(model, data)
    return " ".join([platform.node(), __version__, *(one or "" for one in software()), *code])
