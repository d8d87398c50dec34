"""The view of a leaf in Chromium: values, a long read that is cancelled, parts, and places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.results import Progress
from tests.browser import Browser
from tests.viewer.served import Viewer, serving


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    mesh = Mesh(devices, ("data", "model"))

    def shard(array: Any, *axes: str | None) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((128, 64), np.float32)
    matrix[7, 9], matrix[70, 1] = np.nan, np.inf
    path = tmp_path_factory.mktemp("leaf") / "model"
    cordwood.save(
        path,
        {
            "cube": shard(np.ones((8, 6, 16), np.float32), "model", None, "data"),
            "long": rng.standard_normal((1000, 100)),
            "matrix": shard(matrix, "data", "model"),
            "text": "line\n" * 3 + "<b>",
            "vector": shard(np.arange(32, dtype=np.int32), "data"),
        },
    )
    return path


@pytest.fixture(scope="module")
def viewer(path: Path) -> Iterator[Viewer]:
    with serving(path) as viewer:
        yield viewer


def open_leaf(browser: Browser, viewer: Viewer, name: str) -> None:
    browser.open(f"{viewer.server.url}#/leaf/a/{name}")
    browser.wait_text(name, "h1")


def test_a_leaf_shows_its_type_statistics_and_first_values(
    browser: Browser, viewer: Viewer
) -> None:
    for theme in ("light", "dark"):
        for width in (1280, 390):
            browser.theme(theme)
            browser.size(width, 900)
            open_leaf(browser, viewer, "matrix")
            browser.wait_text("all 8,192 elements")
            browser.find(".chart canvas")
            browser.wait_for_fit()
            browser.screenshot(f"leaf-{theme}-{width}")
    facts = browser.text("[aria-label=Type]")
    for words in ("float32", "128 \u00d7 64", "8,192", "32.0 KiB", "JAX array"):
        assert words in facts
    statistics = browser.text(".statistics .facts").split("\n")
    assert statistics[statistics.index("NaN") + 1] == "⚠ 1"
    assert statistics[statistics.index("Inf") + 1] == "⚠ 1"
    assert len(browser.texts(".values li")) == 8
    histogram = browser.find(".histogram-bars").get_attribute("aria-label")
    assert histogram.startswith("Histogram: 8,190 values from -")
    heat_map = browser.find(".heat-map").get_attribute("aria-label")
    assert "1 cell not finite" in heat_map
    assert "NaN or infinite" in browser.text(".chart .legend")


def test_charts_are_read_by_keyboard(browser: Browser, viewer: Viewer) -> None:
    right, down = "\ue014", "\ue015"
    open_leaf(browser, viewer, "matrix")
    browser.run("arguments[0].focus()", browser.find(".histogram-bars"))
    browser.press(right)
    browser.wait_text("value", ".histogram .readout")
    browser.run("arguments[0].focus()", browser.find(".heat-map"))
    browser.press(right, right, down)
    browser.wait_text("rows 2 to 3, columns 1:", ".chart .readout")


def test_the_parts_of_an_array_are_drawn(browser: Browser, viewer: Viewer) -> None:
    open_leaf(browser, viewer, "matrix")
    browser.wait_text("8 parts, each 32 \u00d7 32.", "figcaption")
    assert len(browser.texts(".boxes rect")) == 8
    open_leaf(browser, viewer, "vector")
    browser.wait_text("4 parts, each 8.", "figcaption")
    open_leaf(browser, viewer, "cube")
    browser.wait_text(
        "8 parts, each 4 \u00d7 6 \u00d7 4; drawn are axes 0 and 2 of 3.", "figcaption"
    )


def test_the_place_of_each_piece_is_listed(browser: Browser, viewer: Viewer) -> None:
    open_leaf(browser, viewer, "vector")
    browser.wait_text("Where its bytes are: 4 pieces")
    rows = [row.split("\n") for row in browser.texts(".table-body .row")]
    assert [row[1] for row in rows] == ["[0:8]", "[8:16]", "[16:24]", "[24:32]"]
    assert all(row[3] == "32" for row in rows)
    assert all(row[4].startswith("xxh3-128 ") for row in rows)


def test_a_value_that_is_no_array_is_shown_as_text(browser: Browser, viewer: Viewer) -> None:
    open_leaf(browser, viewer, "text")
    browser.wait_text("'line\\nline\\nline\\n<b>'", "pre")
    assert "Python str" in browser.text("[aria-label=Type]")
    assert browser.run("return document.querySelector('.statistics')") is None


def test_previous_and_next_leaves(browser: Browser, viewer: Viewer) -> None:
    open_leaf(browser, viewer, "cube")
    assert browser.find("[aria-label^=Previous]").get_attribute("disabled")
    browser.click("[aria-label^=Next]")
    browser.wait_text("long", "h1")
    assert "2 of 5" in browser.text(".leaf-head")
    browser.click(".breadcrumbs a", "model")
    browser.wait("return location.hash === '#/checkpoint/a'")


def test_a_leaf_that_does_not_exist(browser: Browser, viewer: Viewer) -> None:
    browser.open(f"{viewer.server.url}#/leaf/a/nothing")
    browser.wait_text("There is no leaf nothing in this checkpoint.", ".error")
    browser.open(f"{viewer.server.url}#/nonsense")
    browser.wait_text("There is no view at #/nonsense.", ".error")


class SlowReads:
    """Statistics whose full read ends only when the page is not interested any more."""

    def __init__(self, viewer: Viewer) -> None:
        self._answer = viewer.server.resources.answer
        self.canceled = threading.Event()

    def answer(self, name: str, report: Any = None) -> Any:
        if not name.endswith("/all"):
            value = self._answer(name, report)
            return {**value, "complete": False} if name.startswith("statistics") else value
        try:
            while not self.canceled.wait(0.01):
                report(Progress(3 << 20, 8 << 20, "reading long"))
        except BaseException:
            self.canceled.set()
            raise
        raise AssertionError("canceled twice")


def test_a_long_read_shows_progress_and_is_cancelled(
    browser: Browser, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(path) as viewer, browser.visit():
        reads = SlowReads(viewer)
        monkeypatch.setattr(viewer.server.resources, "answer", reads.answer)
        open_leaf(browser, viewer, "long")
        browser.click(".task button", "Read all")
        browser.wait_text("reading long · 3.0 MiB of 8.0 MiB", ".task")
        browser.screenshot("leaf-reading", full=False)
        assert not reads.canceled.is_set()
        browser.click(".task button", "Cancel")
        browser.wait_text("Cancelled.", ".task")
        assert reads.canceled.wait(60), "the server goes on reading"
        browser.find(".histogram-bars")
        browser.wait_text("Read all", ".task button")


def test_leaving_the_view_cancels_its_read(
    browser: Browser, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(path) as viewer, browser.visit():
        reads = SlowReads(viewer)
        monkeypatch.setattr(viewer.server.resources, "answer", reads.answer)
        open_leaf(browser, viewer, "long")
        browser.click(".task button", "Read all")
        browser.wait_text("reading long", ".task")
        browser.press_on_page("j")
        browser.wait_text("matrix", "h1")
        assert reads.canceled.wait(60), "the server goes on reading"


def test_a_server_that_has_ended_is_named(browser: Browser, path: Path) -> None:
    with serving(path) as viewer:
        open_leaf(browser, viewer, "long")
        browser.wait_text("elements", ".panel-head")
        browser.find(".histogram-bars")  # the last answer has come: no request is cut off
    browser.press_on_page("j")
    browser.wait_text("Start `cordwood view` again.", ".error")
    assert all("ERR_CONNECTION_REFUSED" in line for line in browser.console())
