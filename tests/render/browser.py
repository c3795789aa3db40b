"""Headless Chromium, told what to do through its DevTools pipe: JSON messages, each ended by a zero byte."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)
_FROM_US, _TO_US = 3, 4  # the descriptors that Chromium uses
_FREE = 10


class Browser:
    """One Chromium with one page. Use it as a context manager."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile

    def __enter__(self) -> Browser:
        assert CHROMIUM is not None
        command_read, self._commands = map(_out_of_the_way, os.pipe())
        self._replies, reply_write = map(_out_of_the_way, os.pipe())

        def give() -> None:
            os.dup2(command_read, _FROM_US)
            os.dup2(reply_write, _TO_US)

        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(_FROM_US, _TO_US),
            preexec_fn=give,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(reply_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._session = None
            self._send("Browser.close", {})
        os.close(self._commands)
        os.close(self._replies)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Asks for something and gives the answer; what else comes meanwhile is added to `events`."""
        number = self._send(method, parameters)
        for message in self._messages():
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)
        raise AssertionError("Chromium has ended")

    def show(self, path: Path, width: int, *, dark: bool, height: int = 900) -> None:
        """Opens a file at a width, and waits until it is loaded."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="screen", features=scheme)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.evaluate("document.readyState") != "complete":
            pass

    def evaluate(self, expression: str) -> Any:
        """What an expression is in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, to its end."""
        self._save(path, self.call("Page.captureScreenshot", captureBeyondViewport=True))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        self._save(path, self.call("Page.printToPDF", printBackground=False))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the page, and whatever it asked a network for."""
        found = []
        for event in self.events:
            method, said = event.get("method", ""), event.get("params", {})
            if method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
            elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                found.append(json.dumps(said)[:500])
            elif method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("file:", "about:")):
                found.append(said["request"]["url"][:200])
        return found

    def _save(self, path: Path, answer: dict[str, Any]) -> None:
        path.write_bytes(base64.b64decode(answer["data"]))

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._number

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" in self._buffer:
                message, self._buffer = self._buffer.split(b"\0", 1)
                yield json.loads(message)
            more = os.read(self._replies, 1 << 20)
            if not more:
                return
            self._buffer += more


def _out_of_the_way(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE)
    os.close(descriptor)
    return moved
