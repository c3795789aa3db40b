"""What the operating system refuses for want of disk space or files, in its own words."""

from __future__ import annotations

import errno
import os

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
_TEXTS = tuple(map(os.strerror, _NUMBERS))


def is_about_files(text: str) -> bool:
    """Whether an error's text is about these: TensorFlow raises the same for a lack of memory."""
    return any(refusal in text for refusal in _TEXTS)
