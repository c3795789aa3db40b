"""The command that installs an NVIDIA driver on this machine's distribution of Linux."""

from __future__ import annotations

import platform
from collections.abc import Mapping

# By the ID in /etc/os-release, or one of those that it is like; what must be enabled before stands
# in brackets.
_INSTALLS = {
    "ubuntu": "sudo ubuntu-drivers install",
    "debian": "sudo apt-get install nvidia-driver (from the component non-free)",
    "fedora": "sudo dnf install akmod-nvidia (from RPM Fusion)",
    "arch": "sudo pacman -S nvidia",
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
