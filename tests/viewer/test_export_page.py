"""An export in Chromium: opened from the disk with the network off, it shows the same views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.viewer.page import page
from tests.browser import Browser
from tests.cli.conftest import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    rng = np.random.default_rng(0)
    tree = {f"w{i}": rng.standard_normal((128 * (i + 1), 128), np.float32) for i in range(6)}
    cordwood.save(path, {**tree, "step": 7, "<b>": np.zeros(3)})
    return path


@pytest.fixture
def offline(browser: Browser) -> Iterator[Browser]:
    """Turn the network off for a test."""
    settings = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions", {"offline": True, **settings}
    )
    yield browser
    browser.driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions", {"offline": False, **settings}
    )


def test_an_export_shows_leaves_without_a_server(
    offline: Browser, run: Run, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "export.html"
    assert run("view", path, "--export", file).code == 0
    offline.open(file.as_uri())
    offline.find(".treemap[data-items]")
    offline.wait_text("export", ".badge")
    assert "8 leaves" in offline.text(".heading")
    assert offline.run("return [...document.querySelectorAll('.task')].length") == 0
    offline.screenshot("export")
    offline.type(".search", "w5")
    offline.wait_text("1 of 8 leaves")
    assert "search=w5" in offline.hash()
    offline.click(".row a.key", "w5")
    offline.wait_text("w5", "h1")
    offline.find(".histogram-bars")
    offline.press_on_page("k")
    offline.wait_text("w4", "h1")
    offline.driver.back()
    offline.driver.back()
    offline.wait_text("1 of 8 leaves")
    offline.press_on_page("t")
    offline.wait("return document.documentElement.dataset.theme === 'light'")
    offline.press_on_page("t", "t")


def test_what_an_export_lacks_is_said_with_the_command_that_shows_it(
    offline: Browser, run: Run, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "export.html"
    room_for_one = (len(page([]).html.encode()) + 65_000) / 1e6  # statistics take 45 kB
    assert run("view", path, "--export", file, "--max-mb", room_for_one).code == 0
    offline.open(file.as_uri())
    assert "Left out to keep the file small" in offline.text("footer")
    assert f"cordwood view {path}" in offline.text("footer")
    offline.go("#/leaf/a/w0")
    offline.wait_text("left out to keep it small", "main")
    assert f"cordwood view {path}" in offline.text("main")
    offline.go("#/leaf/a/w5")
    offline.find(".histogram-bars")
