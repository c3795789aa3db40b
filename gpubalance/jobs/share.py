"""`report --share`: a result without the names in it, to attach to an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpubalance.devices.profile import load_profile, shipped_profiles
from gpubalance.guide.chapters import names, read_chapter
from gpubalance.remedies import known_errors
from gpubalance.results.records import Reported, read_reported
from gpubalance.results.sharing import without_names
from gpubalance.results.warnings import codes_and_texts

_WORD = re.compile(r"--[a-z-]+|[A-Za-zα-ω]+(?:['-][A-Za-z]+)*(?:/[a-z])?(?!\w)")


def shareable(path: Path) -> tuple[Reported, dict[str, int]]:
    """The result of a file without names, and how much of each kind was taken out.

    A word that gpubalance itself does not use may be a name. Raises BadInput for a file that is no
    result.
    """
    return without_names(read_reported(path), set(_words()), set(_products()))


def _words() -> Iterator[str]:
    """Those of the guide and of warnings, and the codes of errors."""
    yield from known_errors()
    chapters = [read_chapter(name).text for name in names()]
    for text in (*chapters, *codes_and_texts()):
        yield text  # which may be a code
        for word in _WORD.findall(text):
            yield word
            yield word.lower()


def _products() -> Iterator[str]:
    """The devices in the profiles that come with gpubalance."""
    for path in shipped_profiles().values():
        for device in load_profile(path).device:
            yield device.name
