"""Hostile names, metadata and values in Chromium: they are shown as text and nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from tests.browser import Browser, server_of

SCRIPT = "</script><script>globalThis.hacked = 1</script>"
IMAGE = "<img src=x onerror='globalThis.hacked = 1'>"
NAMES = (
    SCRIPT,
    IMAGE,
    "\"'`quotes${globalThis.hacked = 1}",
    "javascript:globalThis.hacked=1",
    "bidi\u202egnp.exe",
    "surrogate\ud800",
    "@1",
    "?search=x#/run",
    "x" * 100_000,
    "",
)
HACKED = "return globalThis.hacked ?? document.querySelector('main img, main script')"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("hostile") / "model"
    tree: dict[str, Any] = {name: np.arange(3.0) for name in NAMES}
    tree["values"] = [SCRIPT, "y" * 100_000]
    tree["numbers"] = np.array([np.nan, np.inf, -np.inf, 1e-300])
    cordwood.save(path, tree, metadata={SCRIPT: IMAGE, "long": "z" * 100_000})
    with server_of(path) as url:
        yield url


def test_names_metadata_and_values_are_text(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.find(".treemap[data-items]")
    text = browser.text("main")
    for part in (SCRIPT, IMAGE, "bidi\\u{202e}gnp.exe", "surrogate%ED%A0%80", "''"):
        assert part in text
    assert "\u202e" not in text
    assert "x" * 200 + "… (99,800 more characters)" in text
    assert browser.run(HACKED) is None
    browser.wait_for_fit()
    browser.screenshot("hostile")


def test_each_leaf_has_an_address(browser: Browser, url: str) -> None:
    browser.open(url)
    paths = browser.run(
        "return fetch('resource/checkpoint/a').then((answer) => answer.json())"
        ".then((value) => value.result.leaves.path)"
    )
    assert len(paths) == len(NAMES) + 3
    for number, path in enumerate(paths):
        hash = browser.run(
            "return cordwood.link('leaf', ['a', cordwood.leafPart(arguments[0], arguments[1])])",
            path,
            number,
        )
        browser.go(hash)
        browser.wait_text(f"{number + 1} of {len(paths)}", ".leaf-number")
        shown = browser.text("h1")
        assert shown.startswith("(root)" if path == "" else path.replace("\u202e", "\\u{")[:5])
        assert browser.run(HACKED) is None
    browser.go(f"#/leaf/a/@{paths.index('numbers')}")
    browser.wait_text("numbers", "h1")
    facts = browser.text(".statistics .facts").split("\n")
    assert facts[facts.index("NaN") + 1] == "⚠ 1"
    assert facts[facts.index("Min") + 1] == "1e-300"


def test_any_address_and_any_search_is_survived(browser: Browser, url: str) -> None:
    for hash in ("#/leaf/a/%", "#/leaf/a/%ED%A0%80", "#/leaf/" + "a/" * 2000, f"#/{SCRIPT}", "#//"):
        browser.open(url + hash)
        assert browser.run(HACKED) is None
    browser.open(f"{url}#/checkpoint/a?search=%00%FF(((&sort=nothing&zoom=nothing&colour=none")
    browser.find(".treemap[data-items]")
    browser.type(".search", "[(*+?")
    browser.wait_text("0 of", ".table-count")


def test_20000_children_of_one_container_are_drawn_as_those_in_sight(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    cordwood.save(path, {"many": [np.int8(i % 100) for i in range(20_000)], "one": np.ones(9)})
    with server_of(path) as url, browser.visit():
        browser.open(url)
        browser.find(".treemap[data-items]")
        assert len(browser.texts(".table-body .row")) == 2, "so many children stay folded"
        browser.click(".table-body .row", "many")
        browser.wait_text("19", ".table-body")
        assert len(browser.texts(".table-body .row")) < 100
        browser.run("document.querySelector('.table-scroller').scrollTop = 1e9")
        browser.wait_text("19999", ".table-body")
        browser.wait_text("one", ".table-body")
        assert len(browser.texts(".table-body .row")) < 100
        assert browser.find(".table-scroller").get_attribute("aria-rowcount") == "20003"
