"""A headless Chromium for tests, driven by the DevTools protocol over a pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-pipe"),
]
KEYS = {
    **{"Tab": 9, "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36},
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40},
}


def find() -> str | None:
    """The Chromium of this machine: ``PARSIMAX_CHROMIUM``, or the first of the usual names in the path."""
    wanted = os.environ.get("PARSIMAX_CHROMIUM")
    names = [wanted] if wanted else ["chromium", "chromium-browser", "google-chrome", "chrome"]
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One Chromium process. Messages are JSON texts that end in NUL, on file descriptors 3 and 4 of the process."""

    def __init__(self, program: str, seconds: float = 15) -> None:
        self.seconds, self._last, self._buffer = seconds, 0, b""
        self.events: deque[dict[str, Any]] = deque()
        self._profile = tempfile.mkdtemp(prefix="parsimax-chromium-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # Popen keeps the numbers of descriptors; the shell moves them to where Chromium looks.
        shell = f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{answers} 2>/dev/null'
        arguments = ["sh", "-c", shell, "sh", program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(arguments, pass_fds=(commands, answers), stdout=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer; events that come meanwhile are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        end = time.monotonic() + self.seconds
        while True:
            answer = self._message(end, method)
            if answer.get("id") != self._last:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def _message(self, end: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer {what} within {self.seconds} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError(f"Chromium ended during {what} (exit code {self._process.wait()})")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def page(self, width: int = 1280, height: int = 900) -> Page:
        return Page(self, width, height)

    def close(self) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)


class Page:
    """One tab, offline from its start, that remembers its requests, console messages and exceptions."""

    def __init__(self, browser: Browser, width: int, height: int) -> None:
        self.browser = browser
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded = False
        self._target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.send("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self.send(f"{domain}.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.send("Network.emulateNetworkConditions", **offline)
        self.resize(width, height)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self.browser.send(method, self._session, **parameters)
        self._note()
        return answer

    def _note(self) -> None:
        mine = [event for event in self.browser.events if event.get("sessionId") == self._session]
        self.browser.events = deque(event for event in self.browser.events if event.get("sessionId") != self._session)
        for event in mine:
            name, facts = event["method"], event["params"]
            if name == "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            elif name == "Runtime.exceptionThrown":
                details = facts["exceptionDetails"]
                self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
            elif name == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
                self.problems.append(" ".join(str(part.get("value", part)) for part in facts["args"]))
            elif name == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
                self.problems.append(facts["entry"]["text"])
            elif name == "Page.loadEventFired":
                self._loaded = True

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file afresh and wait until the browser says that it is loaded."""
        self.send("Page.navigate", url="about:blank")  # else a new fragment alone would load nothing
        self.run("0")
        self.requests.clear()
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait(lambda: self._loaded, f"loading of {path.name}")

    def wait(self, condition: Any, what: str = "") -> Any:
        """Wait until a function, or an expression in the page, is true; returns its value."""
        end = time.monotonic() + self.browser.seconds
        while time.monotonic() < end:
            value = self.run(condition) if isinstance(condition, str) else condition()
            if value:
                return value
            time.sleep(0.01)
            self.send("Runtime.evaluate", expression="0")  # brings pending events
        raise TimeoutError(f"waited {self.browser.seconds} s for {what or condition}; problems: {self.problems}")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """What the system says of ``prefers-color-scheme``: light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, modifiers: int = 0) -> None:
        """A real key press: a name such as Tab or ArrowDown, or one character. Modifiers: 2 is Ctrl, 8 is Shift."""
        code = KEYS[key] if key in KEYS else ord(key.upper())
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {} if key in KEYS else {"text": key}
        self.send("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **facts)

    def point(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.point(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """Click in the middle of the first element of a selector, scrolled into view."""
        self.click(*self.centre(selector))

    def centre(self, selector: str) -> tuple[float, float]:
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        if found is None:
            raise LookupError(f"no element matches {selector}")
        return found[0], found[1]

    def picture(self, path: Path) -> None:
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def metrics(self) -> dict[str, float]:
        return {each["name"]: each["value"] for each in self.send("Performance.getMetrics")["metrics"]}

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self._target)
