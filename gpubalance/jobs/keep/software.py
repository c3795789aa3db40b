"""What decides how fast a step is, besides devices and settings: the host, the software and the user's own code."""

from __future__ import annotations

import platform

from gpubalance._version import __version__
from gpubalance.system.versions import software
from gpubalance.workers.code import own_codes


def software_key(model: str, data: str | None = None) -> str:
    """The same text for the same host, the same versions and the same content of the files of a user's own code."""
    code = own_codes(model, data)
    return " ".join([platform.node(), __version__, *(one or "" for one in software()), *code])
