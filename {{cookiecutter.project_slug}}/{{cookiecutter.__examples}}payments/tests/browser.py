"""A real browser without a driver: Chromium, spoken to over two pipes in its own protocol (CDP)."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from redelivery.testing import processes

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT_S = 20


def chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One Chromium process."""

    def __init__(self, profile: str):
        to_browser, self._writing = os.pipe()
        self._reading, from_browser = os.pipe()
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += [
            "--remote-debugging-pipe",
            "--no-proxy-server",
            f"--user-data-dir={profile}",
            "--hide-scrollbars",
        ]
        self.process = processes.start(
            ["bash", "-c", script, "-", chromium(), *flags],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._text = b""
        self.events: list[dict] = []

    def ask(self, method: str, session: str | None = None, **parameters) -> dict:
        """Call a method of the protocol and return its result."""
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters}
        os.write(
            self._writing, json.dumps(call | ({"sessionId": session} if session else {})).encode() + b"\0"
        )
        while True:
            message = self._next()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method: str, session: str) -> None:
        """Return once an event of a session came, or had come since `events` was cleared."""
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self._next())

    def _next(self) -> dict:
        while b"\0" not in self._text:
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._text += part
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)

    def window(self) -> "Window":
        """Open a window with cookies of its own, as another person's."""
        return Window(self)

    def stop(self) -> None:
        """End it."""
        processes.stop(self.process)
        os.close(self._writing)
        os.close(self._reading)


class Window:
    """A page in a profile of its own: what is clicked and typed goes through the browser's own input."""

    def __init__(self, browser: Browser):
        self.browser = browser
        context = browser.ask("Target.createBrowserContext")["browserContextId"]
        target = browser.ask(
            "Target.createTarget", url="about:blank", browserContextId=context, width=1280, height=900
        )
        attached = browser.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = attached["sessionId"]
        self.ask("Page.enable")

    def ask(self, method: str, **parameters) -> dict:
        """Call a method on this page."""
        return self.browser.ask(method, self.session, **parameters)

    def open(self, url: str) -> None:
        """Go to a page and return once it is loaded."""
        self.browser.events.clear()
        self.ask("Page.navigate", url=url)
        self.browser.wait_for("Page.loadEventFired", self.session)

    def js(self, expression: str):
        """Evaluate JavaScript and return its value."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['text']}")
        return result["result"].get("value")

    def click(self, selector: str, *, loads: bool = False) -> None:
        """Click the middle of an element; `loads`: and wait for the page that this leads to."""
        place = self.js(
            f"(e => {{e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f"return [r.x + r.width / 2, r.y + r.height / 2]}})(document.querySelector({json.dumps(selector)}))"
        )
        self.browser.events.clear()
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )
        if loads:
            self.browser.wait_for("Page.loadEventFired", self.session)

    def type(self, selector: str, text: str) -> None:
        """Click into a field and type."""
        self.click(selector)
        self.ask("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option: a native menu is not part of the page, so this goes by script."""
        self.js(
            f"(e => {{e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change', {{bubbles: true}}))}})"
            f"(document.querySelector({json.dumps(selector)}))"
        )

    def text(self, selector: str = "body") -> str:
        """Return the text of an element; empty when it is not there."""
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def wait_for_text(self, text: str) -> None:
        """Return once the page shows a text."""
        end = time.monotonic() + WAIT_S
        while text not in self.text():
            if time.monotonic() > end:
                raise TimeoutError(f"{text!r} is not in:\n{self.text()}")
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the page."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser():
    """Run a browser with a profile of its own."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        running = Browser(profile)
        try:
            yield running
        finally:
            running.stop()
