"""The view of a run stays smooth with many steps.

`make test` checks what is drawn; `make view-trace` measures how long the tasks of the page take.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cordwood.viewer.page import page
from cordwood.viewer.resources import json_bytes
from tests.browser import Browser, chromium, server_of
from tests.viewer.gpt2_run import Faults, save_run

MANY = 5000
MAX_TASK_MS = 100
FAULTS = Faults(nan_from=24_000, damaged=6000, damaged_data=9000, unfinished=30_000)

OBSERVE = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push(Math.round(entry.duration));
}).observe({type: "longtask", buffered: true});
"""

MOVE_SLIDER = """
window.moved = false;
const input = document.querySelector(".slider input");
let position = 0;
const timer = setInterval(() => {
  input.value = position;
  input.dispatchEvent(new Event("input", {bubbles: true}));
  position += 1;
  if (position > Number(input.max)) {
    clearInterval(timer);
    window.moved = true;
  }
}, 10);
"""


def fake_step(number: int) -> dict[str, Any]:
    state = "damaged" if number == 70 else "whole"
    return {
        "name": str(number),
        "number": number,
        "format": "packs",
        "time": 1.75e9 + number,
        "metrics": {"loss": 3 / (1 + number)},
        "disk_bytes": 2 << 20,
        "written_bytes": 1 << 20,
        "linked_bytes": 1 << 20,
        "pinned": number == 80,
        "state": state,
        "problem": "damaged: for this test" if state == "damaged" else "",
        "note": "",
        "kept": [],
    }


def exported_run(file: Path, count: int) -> str:
    steps = [fake_step(number) for number in range(count)]
    names = [step["name"] for step in steps]
    start = {
        "kind": "run",
        "title": "run",
        "version": "0",
        "sources": names,
        "paths": {},
        "command": "cordwood view run",
        "exported": True,
    }
    run = {"root": "run", "steps": steps, "metric_names": ["loss"], "policy": ""}
    file.write_text(page([("start", json_bytes(start)), ("run", json_bytes(run))]).html, "utf-8")
    return file.as_uri()


def test_of_many_steps_only_a_bounded_part_is_drawn(browser: Browser, tmp_path: Path) -> None:
    browser.open(exported_run(tmp_path / "run.html", MANY))
    browser.wait_text(f"Step {MANY - 1}", ".step-facts h3")
    browser.wait_text("damaged", ".timeline-legend")
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, "svg.timeline *") < 150
    assert 0 < browser.run(count, "[aria-label='Steps'] .row") < 80
    assert browser.run(count, ".metric-charts svg *") < 200
    marks = "return [...document.querySelectorAll('.mark-words')].map((e) => e.textContent)"
    assert browser.run(marks) == ["damaged 70", "pinned 80"]


@pytest.mark.skipif(
    not os.environ.get("CORDWOOD_VIEW_TRACE"), reason="measures times: make view-trace"
)
def test_no_task_of_a_run_of_300_steps_takes_long(tmp_path: Path) -> None:
    save_run(tmp_path / "run", count=300, width=12, vocabulary=22_000, faults=FAULTS)
    with server_of(tmp_path / "run") as url, chromium() as browser:
        browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OBSERVE})
        browser.open(url)
        browser.wait_text("Frozen: layer 3")
        longest = {"opening": long_tasks(browser)}
        browser.run(MOVE_SLIDER)
        browser.wait("return window.moved")
        longest["slider"] = long_tasks(browser)
        browser.click(".button", "Compute the norms of 298 steps")
        browser.wait_text("Norms of 298 steps, of all elements.")
        longest["norms"] = long_tasks(browser)
        for label, value in (("One line for each", "leaf"), ("Leaves of", "all")):
            browser.run(
                """
                const select = document.querySelector(`[aria-label='${arguments[0]}']`);
                select.value = arguments[1];
                select.dispatchEvent(new Event("change"));
                """,
                label,
                value,
            )
        browser.wait_text("553 lines")
        browser.run(MOVE_SLIDER)
        browser.wait("return window.moved")
        longest["leaves"] = long_tasks(browser)
    print(longest)
    assert {
        part: tasks for part, tasks in longest.items() if max(tasks, default=0) > MAX_TASK_MS
    } == {}


def long_tasks(browser: Browser) -> list[int]:
    """Return the durations in ms of the tasks over 50 ms since the last call."""
    browser.run("return new Promise((resolve) => setTimeout(resolve, 600))")
    tasks: list[int] = browser.run("return window.longTasks.splice(0)")
    return tasks
