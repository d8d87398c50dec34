"""The view of a run in Chromium: timeline, slider, metrics, norms, and the steps as a table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cordwood import CheckpointManager
from cordwood.viewer.export_page import export_page
from cordwood.viewer.page import page
from cordwood.viewer.resources import Resources
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.browser import Browser, server_of
from tests.viewer.gpt2_run import Faults, save_run

FAULTS = Faults(nan_from=1400, damaged=600, damaged_data=900, unfinished=2000)
ARROW_LEFT = "\ue012"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("runs") / "gpt2"
    save_run(root, count=20, faults=FAULTS)
    with server_of(root) as url:
        yield url


def move_slider(browser: Browser, step: str) -> None:
    """Move the slider as a pointer does, and wait until the view follows."""
    browser.run(
        """
        const input = document.querySelector(".slider input");
        const names = [...document.querySelectorAll(".step-pair option")].map((o) => o.innerText);
        input.value = names.findIndex((name) => name.split(" ")[0] === arguments[0]);
        input.dispatchEvent(new Event("input", {bubbles: true}));
        """,
        step,
    )
    browser.wait_text(f"Step {step}", ".step-facts h3")


def test_a_run_opens_with_its_newest_whole_step(browser: Browser, url: str) -> None:
    browser.open(url)
    assert browser.hash().startswith("#/run")
    browser.wait_text("Step 1900", ".step-facts h3")
    assert "20 steps" in browser.text(".run-summary")
    assert "manager.plan()" in browser.text(".run-summary")
    facts = browser.text(".step-facts")
    for words in ("loss", "learning_rate", "written", "linked", "it is the newest whole step"):
        assert words in facts


def test_damaged_and_unfinished_steps_are_marked_by_shape_and_word(
    browser: Browser, url: str
) -> None:
    browser.open(f"{url}#/run")
    browser.find(".timeline .bar-unfinished")
    browser.find(".timeline .bar-damaged")
    marks = browser.run(
        "return [...document.querySelectorAll('.timeline .mark-words')].map((e) => e.textContent)"
    )
    assert marks == ["damaged 600", "unfinished 2000"]
    browser.click(".timeline-legend button", "damaged")
    browser.wait_text("Step 600", ".step-facts h3")
    assert "does not match its own digest" in browser.text(".step-problem")
    browser.click(".timeline-legend button", "unfinished")
    browser.wait_text("Step 2000", ".step-facts h3")
    assert "no index" in browser.text(".step-problem")
    assert browser.texts(".step-facts .actions") == []


def test_the_slider_moves_the_step_and_the_address(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    move_slider(browser, "300")
    browser.wait("return location.hash.includes('step=300')")
    browser.run("document.querySelector('.slider input').focus()")
    browser.press(ARROW_LEFT)
    browser.wait_text("Step 200", ".step-facts h3")
    assert browser.run("return document.querySelector('.slider input').ariaValueText").startswith(
        "200 · 2025-"
    )
    browser.wait("return location.hash.includes('step=200')")
    browser.open(f"{url}{browser.hash()}")
    browser.wait_text("Step 200", ".step-facts h3")


def test_a_click_on_the_timeline_chooses_the_nearest_step(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    browser.run(
        """
        const box = document.querySelector("svg.timeline").getBoundingClientRect();
        const options = {clientX: box.left + 12, clientY: box.top + 60, bubbles: true};
        document.querySelector("svg.timeline").dispatchEvent(new MouseEvent("click", options));
        """
    )
    browser.wait_text("Step 100", ".step-facts h3")
    assert "Difference" not in browser.text(".step-facts")


def test_the_timeline_can_follow_time(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    labels = "return [...document.querySelectorAll('.axis-words')].map((e) => e.textContent)"
    assert browser.run(labels)[0] == "100"
    browser.click(".timeline-axis button", "by time")
    assert browser.run(labels)[0].startswith("2025-06-15")
    assert "axis=time" in browser.hash()


def test_a_step_opens_as_a_checkpoint(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run?step=300")
    browser.click(".step-facts a", "Open this step")
    browser.wait("return location.hash === '#/checkpoint/300'")
    browser.wait_for_view()
    browser.wait_text("params", ".table")


def test_two_steps_are_chosen_for_a_difference(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run?step=700")
    links = "return [...document.querySelectorAll('.chosen-step a')].map((a) => a.hash)"
    browser.wait_text("Step 700", ".step-facts h3")
    before = browser.run(links)
    assert before == ["#/checkpoint/700", "#/diff/500/700", "#/diff/500/700"]  # 600 is damaged
    browser.run(
        """
        const [first, second] = document.querySelectorAll(".step-pair select");
        first.value = [...first.options].find((o) => o.innerText === "100").value;
        second.value = [...second.options].find((o) => o.innerText === "1900").value;
        for (const each of [first, second]) each.dispatchEvent(new Event("change"));
        """
    )
    assert browser.run(links)[2] == "#/diff/100/1900"
    disabled = "return [...document.querySelectorAll('.step-pair select:first-of-type option')]"
    names = browser.run(disabled + ".filter((o) => o.disabled).map((o) => o.innerText)")
    assert names == ["600 (damaged)", "2000 (unfinished)"]


def test_metrics_are_drawn_and_can_be_chosen(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    heads = """
        const heads = document.querySelectorAll(".metric-charts .chart-head > span");
        return [...heads].map((e) => e.innerText);
        """
    assert browser.run(heads) == ["loss", "accuracy", "learning_rate"]
    browser.click(".panel .toggle", "accuracy")
    assert browser.run(heads) == ["loss", "learning_rate"]
    browser.wait("return location.hash.includes('metrics=loss')")
    path = browser.run(
        "return document.querySelector('.metric-charts path.line').getAttribute('d')"
    )
    assert path.count("M") == 2  # step 600 has no metrics: the line is interrupted


def test_norms_are_computed_on_demand_and_find_the_nans(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    browser.click(".button", "Compute the norms of 18 steps")
    browser.wait_text("Norms of 18 steps, of all elements.")
    table = browser.text("[aria-label='Lines of the chart']")
    assert "h 7" in table
    assert "NaN from step 1400" in table
    panel = browser.text("[aria-label='Norms of leaves over steps']")
    assert "Step 900" in panel  # the flipped byte is met on reading
    assert "do not match the digest" in panel
    cross = "return document.querySelector('[aria-label^=\"Norms\"] path.cross').getAttribute('d')"
    assert browser.run(cross).count("M") == 6  # one for each step with NaNs
    browser.run(
        """
        const kinds = document.querySelector("[aria-label='One line for each']");
        kinds.value = "kind";
        kinds.dispatchEvent(new Event("change"));
        """
    )
    browser.wait_text("norm", "[aria-label='Lines of the chart']")
    browser.wait("return location.hash.includes('by=kind')")


def test_the_matrix_shows_the_frozen_block_without_reading(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run?step=1400")
    panel = "[aria-label='Change since the step before']"
    browser.wait_text("From step 1300 to 1400", panel)
    browser.wait_text("Frozen: layer 3", panel)
    assert "NaN" not in browser.text(panel)


def test_the_matrix_finds_the_layer_with_nans_once_values_are_compared(
    browser: Browser, url: str
) -> None:
    browser.open(f"{url}#/run?step=1400")
    panel = "[aria-label='Change since the step before']"
    browser.click(".button", "Compare values")
    browser.wait_text("NaN or new infinite elements: layer 7", panel)
    browser.wait_text("Frozen: layer 3", panel)
    move_slider(browser, "1300")  # where the block was whole
    browser.wait_text("From step 1200 to 1300", panel)
    browser.wait(
        "return !document.querySelector(arguments[0]).innerText.includes('not compared')", panel
    )
    assert "NaN" not in browser.text(panel)


def test_a_cell_of_the_matrix_opens_its_leaves(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run?step=1400")
    browser.wait_text("Frozen: layer 3", "[aria-label='Change since the step before']")
    browser.run("document.querySelector('canvas.heat-map').focus()")
    browser.press("\ue015", "\ue014", "\ue015", "\ue007")  # down, right, down, Enter
    browser.wait("return location.hash.startsWith('#/diff/1300/1400')")
    browser.wait_for_view()
    browser.wait_text("h_0", ".table")


def test_a_step_that_cannot_be_compared_says_why(browser: Browser, url: str) -> None:
    panel = "[aria-label='Change since the step before']"
    browser.open(f"{url}#/run?step=600")
    browser.wait_text("Step 600 is not compared: it is damaged.", panel)
    move_slider(browser, "100")
    browser.wait_text("Step 100 is not compared: there is no step before it.", panel)


def test_two_steps_are_compared_from_the_run(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run?step=1500")
    browser.click(".step-facts a", "Difference with step 1400")
    browser.wait("return location.hash.startsWith('#/diff/1400/1500')")
    browser.wait_for_view()
    browser.wait_text("identical", "main")


def test_every_theme_and_width(browser: Browser, url: str) -> None:
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.open(f"{url}#/run?step=1400")
        browser.wait_text("Step 1400", ".step-facts h3")
        browser.screenshot(f"run-{theme}")
    table = "document.querySelector(\".table-scroller[aria-label='Steps']\")"
    for width in (1000, 1200):
        browser.size(width, 900)
        browser.wait(f"const e = {table}; return innerWidth === {width} && e.clientWidth > 0")
        browser.wait(f"const e = {table}; return e.scrollWidth <= e.clientWidth")
    browser.size(390, 844)
    browser.open(f"{url}#/run?step=1400")
    browser.wait_text("Step 1400", ".step-facts h3")
    browser.screenshot("run-narrow")
    browser.wait_for_fit()


def test_the_table_of_steps_moves_the_slider(browser: Browser, url: str) -> None:
    browser.open(f"{url}#/run")
    browser.click("[aria-label='Steps'] .row", "2025-06-15 15:26")
    browser.wait_text("Step 200", ".step-facts h3")


def test_an_exported_run_opens_from_disk(browser: Browser, tmp_path: Path) -> None:
    faults = Faults(nan_from=400, damaged=200, unfinished=600)
    save_run(tmp_path / "gpt2", count=6, faults=faults)
    file = tmp_path / "run.html"
    sources = open_sources(str(tmp_path / "gpt2"), None, OpenArguments())
    file.write_bytes(export_page(Resources(sources), max_bytes=20_000_000).html)
    sources.close()
    shutil.rmtree(tmp_path / "gpt2")
    browser.open(file.as_uri())
    browser.wait_text("Step 500", ".step-facts h3")
    panel = "[aria-label='Change since the step before']"
    browser.wait_text("From step 400 to 500", panel)
    browser.wait_text("Norms of 4 steps")
    browser.wait_text("NaN from step 400", "[aria-label='Lines of the chart']")
    move_slider(browser, "400")
    browser.wait_text("NaN or new infinite elements: layer 7", panel)
    browser.click(".step-facts a", "Difference with step 300")
    browser.wait("return location.hash.startsWith('#/diff/300/400')")
    browser.wait_for_view()
    browser.go("#/run?step=500")
    browser.screenshot("run-export")
    browser.click(".step-facts a", "Open this step")
    browser.wait("return location.hash === '#/checkpoint/500'")
    browser.wait_for_view()
    browser.wait_text("params", ".table")


def test_an_export_says_which_steps_it_does_not_hold(browser: Browser, tmp_path: Path) -> None:
    save_run(tmp_path / "gpt2", count=3)
    sources = open_sources(str(tmp_path / "gpt2"), None, OpenArguments())
    resources = Resources(sources)
    values = [(name, resources.answer_json(name)) for name in ("start", "run")]
    sources.close()
    file = tmp_path / "run.html"
    file.write_text(page(values).html, "utf-8")
    browser.open(f"{file.as_uri()}#/run?step=300")
    browser.wait_text("This file does not hold the leaves of this step.", ".step-facts")
    browser.wait_text("this file does not hold the difference", "[aria-label^='Change']")
    browser.wait_text("This file holds no norms.")
    assert browser.texts(".step-facts .actions a") == []


def test_refresh_shows_the_steps_that_were_saved_meanwhile(
    browser: Browser, tmp_path: Path
) -> None:
    with CheckpointManager(tmp_path, background=False) as manager, ExitStack() as serving:
        manager.save(1, {"w": np.zeros(3)})
        url = serving.enter_context(server_of(tmp_path))
        serving.enter_context(browser.visit())
        browser.open(url)
        browser.wait_text("1 step", ".run-summary")
        browser.wait_text("No step has metrics")
        manager.save(2, {"w": np.ones(3)}, metrics={"loss": 1.0})
        browser.click(".run-summary button", "Refresh")
        browser.wait_text("2 steps", ".run-summary")


def test_hostile_metrics_are_shown_and_not_run(browser: Browser, tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>", "\u202eloss\u0007", "x" * 100_000, "a,b/c%2F"]
    values = [float("nan"), float("inf"), -1e308, 0.0]
    with CheckpointManager(tmp_path, background=False) as manager:
        for step in (1, 2):
            metrics = dict(zip(names, values, strict=True))
            metrics["far"] = (-1) ** step * 1.7e308
            manager.save(step, {"w": np.zeros(3)}, metrics=metrics)
    with server_of(tmp_path) as url, browser.visit():
        browser.open(url)
        browser.wait_text("<img src=x onerror=alert(1)>", ".step-facts")
        assert "\\u{202e}loss\\u{7}" in browser.text(".step-facts")
        assert "NaN" in browser.text(".step-facts")
        assert len(browser.text("main")) < 20_000
        assert browser.run("return document.querySelectorAll('main img').length") == 0
        browser.click(".panel .toggle", "a,b/c%2F")
        heads = "return document.querySelectorAll('.metric-charts figure').length"
        assert browser.run(heads) == 4
        browser.click(".panel .toggle", "far")
        assert browser.run(heads) == 5
