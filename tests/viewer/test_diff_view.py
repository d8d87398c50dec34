"""The view of a difference, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import cordwood
from cordwood.viewer.export_page import export_page
from cordwood.viewer.resources import Resources
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.browser import Browser, server_of
from tests.viewer.gpt2_run import Faults, save_run
from tests.viewer.sparse_checkpoint import write_sparse

ENTER, ESCAPE, DOWN, RIGHT = "\ue007", "\ue00c", "\ue015", "\ue014"
LEAF = "#/diff/a/b/leaf/params%2Fh_7%2Fmlp%2Fc_fc%2Fkernel"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "run"
    save_run(root, count=4, faults=Faults(nan_from=300))
    return root


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    with server_of(run / "200", run / "300") as address:
        yield address


def wait_for_values(browser: Browser) -> None:
    browser.find(".view-diff[data-complete=true]")


def rows(browser: Browser) -> list[str]:
    return browser.texts(".table .row")


def test_the_verdict_names_the_frozen_block_and_the_one_with_nans(
    browser: Browser, url: str
) -> None:
    browser.open(url)
    wait_for_values(browser)
    assert browser.text(".verdict-line").split(maxsplit=1)[1] == (
        "535 of 553 leaves differ: 535 changed"
    )
    assert browser.texts(".verdict .finding") == [
        "NaN or new infinite elements: layer 7",
        "Frozen: layer 3",
    ]
    browser.screenshot("diff-light")
    browser.theme("dark")
    browser.screenshot("diff-dark")
    title = browser.run("return document.title")
    assert isinstance(title, str)
    assert title.endswith(" · cordwood")
    browser.size(1280, 800)
    scroller = browser.find(".table-scroller")
    browser.wait("return arguments[0].scrollWidth <= arguments[0].clientWidth", scroller)
    browser.size(400, 800)
    browser.wait_for_fit()
    browser.screenshot("diff-narrow")


def test_the_matrix_marks_the_frozen_block_and_the_one_with_nans(
    browser: Browser, url: str
) -> None:
    """The tooltip of each cell of the two layers says what is wrong; others have numbers."""
    browser.open(url)
    wait_for_values(browser)
    canvas = browser.find(".layer-matrix canvas")
    assert "not finite" in canvas.get_attribute("aria-label")
    browser.run("arguments[0].focus()", canvas)
    texts = {}
    browser.press(DOWN, RIGHT)  # the first key chooses the first cell
    for layer in range(12):
        browser.press(DOWN)
        texts[layer] = browser.text(".layer-matrix .readout")
    assert texts[3] == "layer 3 · norm · 4 leaves: ="
    assert texts[7] == "layer 7 · norm · 4 leaves: NaN NaN"
    assert 0 < float(texts[4].removeprefix("layer 4 · norm · 4 leaves: ")) < 1


def test_a_cell_of_the_matrix_leads_to_its_leaves(browser: Browser, url: str) -> None:
    browser.open(url)
    wait_for_values(browser)
    browser.run("arguments[0].focus()", browser.find(".layer-matrix canvas"))
    browser.press(DOWN, DOWN, RIGHT, ENTER)  # layer 0, norm
    browser.wait_text("4 leaves", ".table-count")
    assert "layer 0 · norm" in browser.text(".filters")
    assert "cell=params" in browser.hash()
    browser.click(".chip", "layer 0")
    browser.wait_text("553 leaves", ".table-count")
    browser.run("arguments[0].focus()", browser.find(".layer-matrix canvas"))
    browser.press(DOWN, DOWN, RIGHT, RIGHT, ENTER)  # layer 0, q
    browser.wait_text("params/h_0/attn/q_proj/kernel", ".view-diff-leaf h1")


def test_leaves_are_filtered_sorted_and_opened(browser: Browser, url: str) -> None:
    browser.open(url)
    wait_for_values(browser)
    browser.click(".chip", "identical")
    browser.wait_text("18 leaves", ".table-count")
    browser.click(".chip", "identical")
    browser.wait_text("553 leaves", ".table-count")
    browser.press("/")
    browser.press(*"h_7 kernel")
    browser.wait_text("18 of 553 leaves", ".table-count")
    browser.click(".table-head button", "Relative L2")
    browser.wait("return document.querySelector('.table .row').innerText.includes('/')")
    assert "search=h_7" in browser.hash()
    assert "sort=-relative_l2" in browser.hash()
    numbers = [float(row.split("\n")[3]) for row in rows(browser)]
    assert numbers == sorted(numbers, reverse=True)
    browser.click(".table .row a.key")
    browser.find(".view-diff-leaf h1")
    browser.run("history.back()")
    browser.wait_for_view()
    browser.wait_text("18 of 553 leaves", ".table-count")


def test_a_leaf_shows_statistics_and_charts(browser: Browser, url: str) -> None:
    browser.open(url + LEAF)
    browser.wait_text("changed", ".diff-leaf-head .state")
    facts = dict(zip(browser.texts(".facts dt"), browser.texts(".facts dd"), strict=True))
    assert facts["changed"] == "100 % (2,304 of 2,304)"
    assert facts["new NaN"] == "6"
    assert 0 < float(facts["relative L2"]) < 1
    assert browser.find(".histogram-bars rect")
    assert "float32[24,96]" in browser.text(".diff-head")
    browser.screenshot("diff-leaf-light")
    browser.theme("dark")
    browser.screenshot("diff-leaf-dark")
    browser.press("j")
    browser.wait_text("params/h_7/mlp/c_fc/bias", ".view-diff-leaf h1")
    browser.press("k")
    browser.wait_text("params/h_7/mlp/c_fc/kernel", ".view-diff-leaf h1")
    browser.press(ESCAPE)
    browser.find(".view-diff")


def test_the_steps_of_a_run_are_chosen(browser: Browser, run: Path) -> None:
    with server_of(run) as address, browser.visit():
        browser.open(address + "#/diff/100/200")
        wait_for_values(browser)
        assert browser.texts(".verdict .finding") == ["Frozen: layer 3"]
        browser.run(
            "const s = arguments[0]; s.value = '300'; s.dispatchEvent(new Event('change'))",
            browser.find("select[aria-label='Step of side b']"),
        )
        browser.wait_text("layer 7", ".verdict")
        assert browser.hash() == "#/diff/100/300"
        browser.screenshot("diff-run")
        browser.click(".diff-head a", "Swap")
        browser.wait("return location.hash === '#/diff/300/100'")
        wait_for_values(browser)
        assert browser.texts(".verdict .finding") == ["Frozen: layer 3"]


def test_a_model_of_many_layers_names_the_frozen_ones_as_ranges(
    browser: Browser, tmp_path: Path
) -> None:
    names = ("self_attn.q_proj", "mlp.up_proj", "input_layernorm")
    before = {f"model.layers.{i}.{name}.weight": np.ones(8) for i in range(80) for name in names}
    after = dict(before)
    for layer in range(80):
        for name in names:
            if layer >= 8 and layer != 20:
                after[f"model.layers.{layer}.{name}.weight"] = np.full(8, 1.01)
    after["model.layers.41.mlp.up_proj.weight"] = np.full(8, np.nan)
    save_file(before, tmp_path / "a.safetensors")
    save_file(after, tmp_path / "b.safetensors")
    with (
        server_of(tmp_path / "a.safetensors", tmp_path / "b.safetensors") as address,
        browser.visit(),
    ):
        browser.open(address)
        wait_for_values(browser)
        assert browser.texts(".verdict .finding") == [
            "NaN or new infinite elements: layer 41",
            "Frozen: layers 0 to 7, 20",
        ]
        browser.screenshot("diff-many-layers")


def test_every_state_has_a_word_and_a_symbol(browser: Browser, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    big = rng.standard_normal((512, 512), np.float32)
    before = {
        "frozen": big + 1,
        "old": {"name": big},
        "gone": np.zeros(3),
        "shape": np.zeros((2, 3)),
        "type": np.arange(4.0),
        "weights": np.zeros(5),
        "step": 1,
        "equal": np.zeros(4),
    }
    after = {
        "frozen": big + 1,
        "new": {"name": big},
        "extra": np.zeros(3),
        "shape": np.zeros((3, 2)),
        "type": np.arange(4, dtype=np.float32),
        "weights": np.ones(5),
        "step": 2,
        "equal": np.zeros(4),
    }
    cordwood.save(tmp_path / "a", before)
    cordwood.save(tmp_path / "b", after)
    with server_of(tmp_path / "a", tmp_path / "b") as address, browser.visit():
        browser.open(address)
        wait_for_values(browser)
        shown = {row.split("\n")[0]: row for row in rows(browser)}
        words = {
            "weights": ("≠", "changed"),
            "gone": ("\N{MINUS SIGN}", "removed"),
            "extra": ("+", "added"),
            "shape": ("⊞", "reshaped", "float64[2,3] → [3,2]"),
            "new/name": ("→", "renamed from old/name"),
            "type": ("≈", "recast", "float64 → float32[4]"),
        }
        for name, expected in words.items():
            assert [word for word in expected if word not in shown[name]] == [], shown[name]
        assert "1 → 2" in shown["step"]
        assert "identical" in shown["frozen"] or "equal" in shown["frozen"]
        browser.screenshot("diff-states")
        browser.click(".table .row a.key", "shape")
        browser.wait_text("The shapes differ", ".view-diff-leaf")


def test_equal_checkpoints_of_two_formats(browser: Browser, tmp_path: Path) -> None:
    tree = {"params": {"w": np.arange(6.0), "b": np.zeros(2)}}
    cordwood.save(tmp_path / "a.safetensors", tree)
    cordwood.save(tmp_path / "b.msgpack", tree)
    with server_of(tmp_path / "a.safetensors", tmp_path / "b.msgpack") as address, browser.visit():
        browser.open(address)
        wait_for_values(browser)
        assert "Equal: 2 leaves" in browser.text(".verdict-line")


def test_hostile_names_are_text(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>\u202e\"'"
    long = "x" * 100_000
    cordwood.save(tmp_path / "a", {name: np.zeros(3), long: np.zeros(2), "\n": 1})
    cordwood.save(tmp_path / "b", {name: np.full(3, np.nan), long: np.ones(2), "\n": "<b>"})
    with server_of(tmp_path / "a", tmp_path / "b") as address, browser.visit():
        browser.open(address)
        wait_for_values(browser)
        assert browser.run("return document.querySelector('main img') === null")
        assert "\\u{202e}" in browser.text(".table")
        browser.click(".table .row a.key", "<img")
        browser.wait_text("new NaN", ".facts")
        browser.run("history.back()")
        browser.wait_for_view()
        browser.click(".table .row a.key", "xxx")
        browser.wait_text("100 % (2 of 2)", ".facts")


def test_of_twenty_thousand_leaves_only_those_in_sight_are_drawn(
    browser: Browser, tmp_path: Path
) -> None:
    arrays = {f"h_{i}": {f"w_{j}": np.zeros(1) for j in range(100)} for i in range(200)}
    cordwood.save(tmp_path / "a", arrays)
    arrays["h_7"]["w_50"] = np.ones(1)
    cordwood.save(tmp_path / "b", arrays)
    with server_of(tmp_path / "a", tmp_path / "b") as address, browser.visit():
        browser.open(address)
        wait_for_values(browser)
        assert "1 of 20,000 leaves" in browser.text(".verdict-line")
        browser.click(".button", "Unfold all")
        browser.wait("return document.querySelector('[aria-rowcount=\"20201\"]')")
        assert browser.run("return document.querySelectorAll('.row').length") < 100
        browser.click(".chip", "changed")
        browser.wait_text("1 leaf", ".table-count")


def test_a_large_difference_is_sampled_and_a_long_comparison_cancelled(
    browser: Browser, tmp_path: Path
) -> None:
    """Nothing of 8 GiB is read without a click, and a sample is limited."""
    for name in ("a", "b"):
        write_sparse(tmp_path / f"{name}.safetensors", leaves=400, size_bytes=8 << 30)
    with (
        server_of(tmp_path / "a.safetensors", tmp_path / "b.safetensors") as address,
        browser.visit(),
    ):
        browser.open(address)
        browser.find(".reading button")
        assert "no values read" in browser.text(".verdict")
        assert browser.texts(".reading button") == [
            "Compare a sample of the values",
            "Compare all values (reads 8.0 GiB of each side)",
        ]
        browser.click(".reading button", "sample")
        browser.wait_text("values are from a sample", ".verdict")
        assert "200.0 MiB read of each side" in browser.text(".verdict")
        browser.click(".reading button", "all")
        browser.click(".reading button", "Cancel")
        browser.wait_text("Cancelled.", ".reading")
        browser.click(".table .row", "layer")  # unfold a container


def test_an_export_shows_the_difference_without_a_server(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    sources = open_sources(str(run / "200"), str(run / "300"), OpenArguments())
    export = export_page(Resources(sources), max_bytes=20 << 20)
    sources.close()
    file = tmp_path / "difference.html"
    file.write_bytes(export.html)
    browser.open(file.as_uri())
    wait_for_values(browser)
    assert "535 of 553 leaves differ" in browser.text(".verdict-line")
    assert browser.find(".layer-matrix canvas")
    assert browser.texts(".diff-head .button") == [], "the other direction is not in the file"
    browser.go(LEAF)
    browser.wait_text("new NaN", ".facts")
