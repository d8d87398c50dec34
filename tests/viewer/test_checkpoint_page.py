"""The view of a checkpoint in Chromium: summary, treemap, table, metadata, keys, themes, widths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cordwood
from tests.browser import Browser, server_of

ENTER, ESCAPE, BACKSPACE = "\ue007", "\ue00c", "\ue003"
LEFT, RIGHT, DOWN, UP = "\ue012", "\ue014", "\ue015", "\ue013"
LAYERS = 6
LEAVES = 6 * LAYERS + 5  # of the checkpoint of these tests
SHOWN = ".table-body .row"
KEYS = ".table-body .row .key"


def block(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    draw = rng.standard_normal
    return {
        "attn": {"qkv": draw((64, 192), np.float32), "out": draw((64, 64), np.float32)},
        "mlp": {"up": draw((64, 256), np.float32), "down": draw((256, 64), np.float32)},
        "norm": {"scale": np.ones(64, ml_dtypes.bfloat16), "bias": np.zeros(64, np.float32)},
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("view") / "model"
    tree = {
        "params": {
            "embed": np.random.default_rng(9).standard_normal((1024, 64), np.float32),
            "layers": [block(i) for i in range(LAYERS)],
            "head": {"kernel": np.ones((64, 32), np.float32)},
        },
        "count": np.int32(7),
        "step": 300,
        "rate": 3e-4,
    }
    config = json.dumps({"layers": LAYERS, "width": 64})
    cordwood.save(path, tree, metadata={"loss": "2.31", "config": config})
    return path


@pytest.fixture(scope="module")
def url(path: Path) -> Iterator[str]:
    with server_of(path) as url:
        yield url


@pytest.fixture
def opened(browser: Browser, url: str) -> Browser:
    """Open the checkpoint, with the treemap drawn."""
    browser.open(url)
    browser.run("localStorage.clear()")
    browser.find(".treemap[data-items]")
    return browser


def test_the_summary_says_what_the_checkpoint_is(opened: Browser) -> None:
    assert opened.hash() == "#/checkpoint/a"
    summary = opened.text(".heading")
    for words in ("model", f"{LEAVES} leaves", "float32, bfloat16, int32", "MiB", "digest"):
        assert words in summary
    assert opened.run("return document.title").startswith("model")
    metadata = opened.text("details.panel")
    assert "2.31" in metadata
    assert '"width": 64' in metadata, "JSON is indented"


def test_it_is_drawn_in_both_themes_and_on_narrow_screens(browser: Browser, url: str) -> None:
    for theme in ("light", "dark"):
        for width in (1280, 390, 360):
            browser.theme(theme)
            browser.size(width, 900)
            browser.open(url)
            browser.find(".treemap[data-items]")
            browser.wait_for_fit()
            assert browser.run("return document.querySelector('.table-scroller').scrollWidth") <= (
                browser.run("return document.querySelector('.table-scroller').clientWidth")
            )
            browser.screenshot(f"checkpoint-{theme}-{width}")


def test_a_container_folds_and_shows_the_sum_of_its_bytes(opened: Browser) -> None:
    assert opened.texts(KEYS)[:3] == ["params", "embed", "layers"]
    opened.click(SHOWN, "params")
    opened.wait(
        "return document.querySelector(arguments[0]).getAttribute('aria-expanded') === 'false'",
        SHOWN,
    )
    assert opened.texts(KEYS) == ["params", "count", "step", "rate"]
    with_sum = opened.texts(f"{SHOWN}:first-child .cell")
    total = 4 * (1024 * 64 + 64 * 32) + LAYERS * (4 * 64 * (192 + 64 + 256 + 256) + 64 * 2 + 64 * 4)
    assert with_sum[-1] == f"{total / 2**20:.1f} MiB"
    opened.click("button", "Unfold all")
    opened.wait("return document.querySelectorAll(arguments[0]).length > 20", SHOWN)
    opened.click("button", "Fold all")
    opened.wait("return document.querySelectorAll(arguments[0]).length === 4", SHOWN)


def test_a_search_shows_the_leaves_that_match_and_is_in_the_address(opened: Browser) -> None:
    opened.press_on_page("/")
    opened.press("mlp up")
    opened.wait_text(f"{LAYERS} of {LEAVES} leaves")
    assert "search=mlp+up" in opened.hash()
    assert "up" in opened.texts("mark") or "mlp" in opened.texts("mark")
    opened.open(opened.run("return location.href"))
    opened.wait_text(f"{LAYERS} of {LEAVES} leaves")
    opened.press_on_page("/")
    opened.press(ESCAPE)
    opened.wait_text(f"{LEAVES} leaves", ".table-count")
    assert "search" not in opened.hash()
    opened.type(".search", "no such leaf")
    opened.wait_text(f"0 of {LEAVES} leaves")


def test_a_click_on_a_column_sorts(opened: Browser) -> None:
    first = "return document.querySelector('.table-body .row').innerText.split('\\n')[0]"
    opened.click(".table-head button", "Size")
    opened.wait(f"{first} === 'params/embed'")
    assert "sort=size_bytes&descending=1" in opened.hash()
    header = opened.find(".table-head [aria-sort=descending]")
    assert header.text.startswith("Size")
    opened.click(".table-head button", "Size")
    opened.wait("return document.querySelector('.table-head [aria-sort=ascending]')")
    sizes = opened.texts(f"{SHOWN} .cell:last-child")
    assert sizes[:2] == ["", ""], "Python values have no bytes"
    opened.click(".table-head button", "Size")
    opened.wait("return document.querySelector('.row.container')")
    opened.click(".table-head button", "Key path")
    opened.wait(f"{first} === 'count'")


def test_a_click_opens_a_leaf_and_back_returns_to_the_search(opened: Browser) -> None:
    opened.type(".search", "layers/3/attn")
    opened.wait_text(f"2 of {LEAVES} leaves")
    opened.click(".row a.key", "qkv")
    opened.wait_text("params/layers/3/attn/qkv", "h1")
    assert opened.hash() == "#/leaf/a/params%2Flayers%2F3%2Fattn%2Fqkv"
    opened.driver.back()
    opened.wait_text(f"2 of {LEAVES} leaves")
    assert opened.run("return document.querySelector('.search').value") == "layers/3/attn"


def test_the_keyboard_moves_folds_and_opens(opened: Browser) -> None:
    active = "return document.querySelector('.row.active .key')?.innerText"
    opened.press_on_page("j")
    opened.wait(f"{active} === 'params'")
    opened.press(LEFT)
    opened.wait("return document.querySelectorAll(arguments[0]).length === 4", SHOWN)
    opened.press(RIGHT)
    opened.wait("return document.querySelectorAll(arguments[0]).length > 4", SHOWN)
    opened.press(DOWN)
    opened.wait(f"{active} === 'embed'")
    scroller = opened.find(".table-scroller")
    row = opened.find(f"#{scroller.get_attribute('aria-activedescendant')}")
    assert row.text.startswith("embed")
    opened.press(ENTER)
    opened.wait_text("params/embed", "h1")
    opened.press_on_page("j")
    opened.wait_text("params/layers/0/attn/qkv", "h1")
    opened.press_on_page("k")
    opened.wait_text("params/embed", "h1")
    opened.press_on_page(BACKSPACE)
    opened.wait("return location.hash === '#/checkpoint/a'")
    opened.find(KEYS)


def test_a_key_path_is_copied_whole(opened: Browser) -> None:
    opened.run("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
    opened.type(".search", "head")
    opened.wait_text(f"1 of {LEAVES} leaves")
    opened.click(f"{SHOWN} .copy")
    opened.wait("return globalThis.copied === 'params/head/kernel'")
    opened.wait_text("Copied params/head/kernel", ".toast")


def test_the_theme_changes_by_a_key_and_is_remembered(opened: Browser) -> None:
    colour = "return getComputedStyle(document.documentElement).backgroundColor"
    light = opened.run(colour)
    opened.press_on_page("t", "t")
    opened.wait("return document.documentElement.dataset.theme === 'dark'")
    assert opened.run(colour) != light
    opened.open(opened.run("return location.href"))
    assert opened.run("return document.documentElement.dataset.theme") == "dark"
    opened.press_on_page("t")
    opened.wait("return document.documentElement.dataset.theme === 'light'")  # the system's
    assert opened.run(colour) == light


def test_help_lists_the_keys(opened: Browser) -> None:
    opened.press_on_page("?")
    assert "copy the key path" in opened.text("dialog[open]")
    opened.screenshot("help", full=False)
    opened.press(ESCAPE)
    opened.wait("return document.querySelector('dialog') === null")


def test_the_treemap_zooms_and_opens_leaves_by_keyboard(opened: Browser) -> None:
    area = opened.find(".treemap-area")
    opened.run("arguments[0].focus()", area)
    opened.press(RIGHT)
    opened.wait_text("params: 38 leaves", ".treemap [aria-live]")
    opened.press(ENTER)
    opened.wait("return location.hash.includes('zoom=params')")
    assert opened.text(".treemap-path").split() == ["all", "params"]
    opened.press(RIGHT, RIGHT)
    opened.press(ESCAPE)
    opened.wait("return !location.hash.includes('zoom')")
    opened.click(".treemap .segments button", "Layer")
    opened.wait("return location.hash.includes('colour=layer')")
    opened.wait_text("layer 5", ".treemap .legend")


def test_a_click_in_the_treemap_opens_a_leaf(opened: Browser) -> None:
    area = opened.find(".treemap-area")
    places = opened.run(
        """
        const [area] = arguments;
        const { left, top, width, height } = area.getBoundingClientRect();
        const places = {};
        for (let x = 5; x < width; x += 20) for (let y = 5; y < height; y += 20) {
          const place = { clientX: left + x, clientY: top + y, bubbles: true };
          area.dispatchEvent(new PointerEvent("pointermove", place));
          places[document.querySelector(".tooltip").firstChild?.innerText] ??= place;
        }
        return places;
        """,
        area,
    )
    assert {"params/embed", "params/layers/0/mlp/up", "params/layers/5/attn/qkv"} <= set(places)
    event = "arguments[0].dispatchEvent(new PointerEvent('click', arguments[1]))"
    opened.run(event, area, places["params/embed"])
    opened.wait_text("params/embed", "h1")


def test_verify_checks_every_digest(opened: Browser) -> None:
    opened.click(".task button", "Verify")
    opened.wait_text("match their digests", ".verification")


def test_all_text_has_enough_contrast_in_both_themes(opened: Browser) -> None:
    """WCAG AA asks for 4.5 for text."""
    pairs = [
        (ink, paper)
        for ink in ("text", "muted", "accent", "added", "removed", "changed", "equal", "damaged")
        for paper in ("panel", "background", "hover")
    ]
    pairs += [("text", "selected"), ("accent", "selected"), ("muted", "selected")]
    for theme in ("light", "dark"):
        opened.run("document.documentElement.dataset.theme = arguments[0]", theme)
        colours = opened.run(
            "const { style } = document.documentElement;"
            "const colours = arguments[0].map((name) => {"
            "  style.color = `var(--${name})`;"
            "  const text = getComputedStyle(document.documentElement).color;"
            "  return [name, text.match(/[0-9]+/g).map(Number)];"
            "});"
            "style.color = '';"
            "return Object.fromEntries(colours)",
            sorted({name for pair in pairs for name in pair}),
        )
        for ink, paper in pairs:
            ratio = contrast(colours[ink], colours[paper])
            assert ratio >= 4.5, f"{theme}: --{ink} on --{paper} has {ratio:.2f}"


def contrast(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the contrast of two colours (red, green, blue), as WCAG 2 defines it."""
    lights = sorted([luminance(first), luminance(second)])
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: Sequence[int]) -> float:
    parts = [part / 255 for part in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
