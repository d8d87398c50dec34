"""A real Chromium for the tests of the viewer, and a server that shows a checkpoint in it."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.served import serving

SCREENSHOTS = Path(__file__).resolve().parents[1] / "build" / "screenshots"
WAIT_SECONDS = 60.0  # for a machine that does other things; a page takes a fraction of a second

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--lang=en-US",
)


def programs() -> tuple[str, str] | None:
    """Return the paths of Chromium and of its driver, or None if they are not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for path in map(shutil.which, names) if path), None)
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class Browser:
    """A window of Chromium that collects what its console says."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def theme(self, name: str) -> None:
        """Prefer a colour scheme, as the settings of a system do: light or dark."""
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": name}]},
        )

    def open(self, url: str) -> None:
        """Open an address, and wait until its view is drawn."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.wait_for_view()

    @contextlib.contextmanager
    def visit(self) -> Iterator[None]:
        """Leave the page at the end of the block, before its server ends.

        The console would name each request that the end of the server cuts off.
        """
        yield
        self.driver.get("about:blank")

    def go(self, hash: str) -> None:
        """Go to a view of the page on screen, and wait until it is drawn."""
        self.run("cordwood.go(arguments[0])", hash)
        self.wait_for_view()

    def wait_for_view(self) -> None:
        """Wait until a view is drawn."""
        self.wait("return document.querySelector('main > .view') !== null")
        self.wait("return document.querySelector('main[aria-busy]') === null")

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: object) -> Any:
        """Run a script until it returns something true, and return that."""
        end = time.monotonic() + WAIT_SECONDS
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > end:
                text = self.run("return document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"never true: {script} {arguments}\nThe page says:\n{text}")
            time.sleep(0.01)
        return value

    def wait_text(self, text: str, css: str = "body") -> None:
        """Wait until an element has a text."""
        self.wait(
            "return [...document.querySelectorAll(arguments[1])]"
            ".some((e) => e.innerText.includes(arguments[0]))",
            text,
            css,
        )

    def find(self, css: str) -> Any:
        """Return the element of a selector, and wait for it."""
        return self.wait("return document.querySelector(arguments[0])", css)

    def text(self, css: str) -> str:
        """Return the text of the element of a selector."""
        found = "const e = document.querySelector(arguments[0]); return e && [e.innerText]"
        return str(self.wait(found, css)[0])

    def texts(self, css: str) -> list[str]:
        """Return the texts of all elements of a selector, in the order of the document."""
        return list(
            self.run(
                "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", css
            )
        )

    def click(self, css: str, text: str | None = None) -> None:
        """Click the element of a selector, or the one of those that has a text.

        A view that is drawn again meanwhile replaces its elements: then the new one is clicked.
        """
        from selenium.common.exceptions import StaleElementReferenceException

        end = time.monotonic() + WAIT_SECONDS
        while True:
            element = self.wait(
                "return [...document.querySelectorAll(arguments[0])]"
                ".find((e) => arguments[1] === null || e.innerText.includes(arguments[1]))",
                css,
                text,
            )
            try:
                self.run("arguments[0].scrollIntoView({block: 'center'})", element)
                element.click()
                return
            except StaleElementReferenceException:
                if time.monotonic() > end:
                    raise

    def press(self, *keys: str) -> None:
        """Press keys, one after another, where the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def press_on_page(self, *keys: str) -> None:
        """Press keys while nothing has the focus."""
        self.run("document.activeElement.blur()")
        self.press(*keys)

    def type(self, css: str, text: str) -> None:
        """Replace the text of an input."""
        element = self.find(css)
        element.clear()
        element.send_keys(text)

    def hash(self) -> str:
        """Return the part of the address behind the page."""
        return str(self.run("return location.hash"))

    def screenshot(self, name: str, *, full: bool = True) -> Path:
        """Write a picture of the page, or of the part in sight, and return its path."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {"format": "png"}
        if full:
            width, height = self.run(
                "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
            )
            settings |= {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": width, "height": min(height, 6000), "scale": 1},
            }
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", settings)
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def wait_for_fit(self) -> None:
        """Wait until the page is not wider than the window: its layout follows a new size."""
        self.wait("const e = document.documentElement; return e.scrollWidth <= e.clientWidth")

    def console(self) -> list[str]:
        """Return the warnings and errors of the console since the last call."""
        return [
            f"{entry['level']}: {entry['message']}"
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("WARNING", "SEVERE")
        ]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, with an empty profile; skip the test if it is not installed."""
    pair = programs()
    if pair is None:
        pytest.skip("no chromium with chromedriver is installed (Debian: chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver_binary = pair
    with tempfile.TemporaryDirectory(prefix="cordwood-chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for option in (*_OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(
            driver_binary, env=os.environ | {"HOME": profile}, log_output=os.devnull
        )
        driver = webdriver.Chrome(options=options, service=service)
        try:
            browser = Browser(driver)
            browser.size(1280, 900)
            yield browser
        finally:
            driver.quit()


@contextlib.contextmanager
def server_of(path: str | Path, other: str | Path | None = None) -> Iterator[str]:
    """Serve a checkpoint, a difference or a run, and yield the address of its page."""
    with serving(path, other) as viewer:
        yield viewer.server.url
