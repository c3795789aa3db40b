"""Opens a page in several frames, and reads what JavaScript finds in each.

It starts Chromium by its own command line.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_FLAGS += ["--no-first-run", "--hide-scrollbars", "--enable-logging=stderr"]
# Else the page around the frames may not look into them
_FLAGS.append("--allow-file-access-from-files")
_WITHIN_S = 120
_CHECKED: Any = {"capture_output": True, "check": True}
# A page takes its frame's `color-scheme` for the user's choice.
# On paper the rules for print count, not the screen's.
_AROUND = Path(__file__).with_name("around.html").read_text(encoding="utf-8")


class View(NamedTuple):
    """A width in pixels, and how the page is shown."""

    width: int
    look: Literal["light", "dark", "paper"]


class Seen(NamedTuple):
    """Each view's answers by the names of the questions, and the console lines of all views."""

    answers: list[dict[str, Any]]
    console: list[str]


def look(
    page: Path, views: Sequence[View], questions: Mapping[str, str], folder: Path
) -> Seen:
    """Evaluates a JavaScript expression for each question in each view.

    Chromium's own files go to `folder`.
    """
    frames = "\n".join(_frame(page, *view) for view in views)
    around = folder / "around.html"
    asked = json.dumps(dict(questions))
    around.write_text(_AROUND.format(frames=frames, questions=asked), encoding="utf-8")
    assert CHROMIUM is not None
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *_FLAGS, profile, "--dump-dom", around.resolve().as_uri()]
    done = subprocess.run(command, text=True, timeout=_WITHIN_S, **_CHECKED)
    (title,) = re.findall(r"(?s)<title>(.*)</title>", done.stdout)
    return Seen(json.loads(html.unescape(title)), re.findall(r"CONSOLE.*", done.stderr))


def _frame(page: Path, width: int, look: str) -> str:
    scheme = "dark" if look == "dark" else "light"
    style = f"width: {width}px; height: 900px; border: 0; color-scheme: {scheme}"
    return f'<iframe data-look="{look}" src="{page.resolve().as_uri()}" style="{style}"></iframe>'
