"""The viewer in a real Chromium: python benchmarks/viewer.py [--rounds 5].

Three measurements, each with `cordwood view` as a new process and its page in a headless Chromium:
the first paint of a large checkpoint, what a difference of two steps reads, and how long the tasks
of the page are while the slider of a run of 300 steps moves. Needs chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

if TYPE_CHECKING:
    from tests.browser import Browser

PACKAGES = ["cordwood", "jinja2", "numpy", "selenium"]
LEAVES = 20_000
TOTAL_BYTES = 100 * 10**9
STEPS = 300
_SHARED = 9  # of ten leaves of two steps
_HOW = """\
Written by `python benchmarks/viewer.py`. The browser is a headless Chromium without a GPU on the
same machine. Each round starts `cordwood view` as a new process and opens its page in a new tab.
Times are medians, from the start of the navigation; the largest one is in parentheses. Memory is
the peak of the server's resident memory. A task is what the page's main thread does at a stretch,
as the browser reports tasks of more than 50 ms (PerformanceObserver, "longtask")."""

# Runs before the scripts of the page: notes when parts of the view are there, and long tasks.
_WATCH = """
globalThis.seen = {};
globalThis.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) globalThis.longTasks.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
const parts = { table: ".table-body .row, .table-body [role=row]", treemap: ".treemap canvas" };
const note = () => {
  for (const [name, css] of Object.entries(parts)) {
    if (!(name in globalThis.seen) && document.querySelector(css)) {
      // After the next frame is on screen.
      globalThis.seen[name] = null;
      requestAnimationFrame(() => setTimeout(() => {
        globalThis.seen[name] = performance.now();
      }));
    }
  }
};
new MutationObserver(note).observe(document, { childList: true, subtree: true });
"""


class Paint(NamedTuple):
    """Milliseconds from the start of the navigation to what is on screen; memory of the server."""

    first: float
    table: float
    treemap: float
    start_seconds: float  # from the start of the process to its address
    peak_bytes: int


def sparse_checkpoint(path: Path, *, leaves: int, total_bytes: int) -> None:
    """Write a `.safetensors` file of float32 leaves whose elements are a hole in the file.

    Args:
        path: the file.
        leaves: the number of leaves, 20 for each layer.
        total_bytes: the size of all elements together; the disk holds the header only.
    """
    rows = total_bytes // leaves // 4 // 1000
    size = rows * 1000 * 4
    header = {
        f"params.layers.{i // 20}.part_{i % 20}.kernel": {
            "dtype": "F32",
            "shape": [rows, 1000],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(leaves)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + leaves * size)


def two_steps(folder: Path, *, leaves: int, size_bytes: int) -> tuple[Path, Path]:
    """Save two steps of equal types whose leaves are equal but for each tenth one."""
    import numpy as np

    import cordwood

    bits = np.random.default_rng(0)
    tree = {
        f"w{i:03d}": bits.standard_normal(size_bytes // leaves // 4, np.float32)
        for i in range(leaves)
    }
    paths = folder / "100", folder / "200"
    cordwood.save(paths[0], tree)
    for i, name in enumerate(tree):
        if i % 10 >= _SHARED:
            tree[name] = tree[name] * np.float32(1.001)
    cordwood.save(paths[1], tree)
    return paths


@contextmanager
def view(*paths: Path) -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    """Start `cordwood view`; yield the process, its address and the seconds until it printed it."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cordwood", "view", *map(str, paths), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        yield process, url, time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """Return the peak of the resident memory of a process."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {process.pid} has ended")


def paint(browser: Browser, path: Path) -> Paint:
    """Open a checkpoint and return when its parts were on screen."""
    with view(path) as (process, url, start_seconds):
        browser.open(url)
        browser.wait(
            "return typeof globalThis.seen.table === 'number'"
            " && typeof globalThis.seen.treemap === 'number'"
        )
        first = browser.run(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        seen = browser.run("return globalThis.seen")
        return Paint(first, seen["table"], seen["treemap"], start_seconds, peak_bytes(process))


def difference(browser: Browser, a: Path, b: Path) -> dict[str, int]:
    """Open the difference of two steps; return the bytes read by digest, and with all values."""
    read_script = """
        const done = arguments[arguments.length - 1];
        cordwood.fetchResource(arguments[0]).then(
          (value) => done(value.read_bytes), (error) => done(String(error)));
    """
    with view(a, b) as (process, url, _):
        browser.open(url)
        read = {
            how: browser.driver.execute_async_script(read_script, f"diff/a/b/{how}")
            for how in ("digests", "all")
        }
        assert all(type(value) is int for value in read.values()), read
        return {**read, "peak": peak_bytes(process)}


def slide(browser: Browser, root: Path) -> list[float]:
    """Open a run, and move its slider over all steps; return the long tasks in milliseconds."""
    with view(root) as (_, url, _):
        browser.open(url)
        browser.find("input[type=range]")
        browser.run(
            """
            const slider = document.querySelector("input[type=range]");
            let value = Number(slider.min);
            globalThis.slid = false;
            const move = () => {
              slider.value = String(value);
              slider.dispatchEvent(new Event("input", { bubbles: true }));
              slider.dispatchEvent(new Event("change", { bubbles: true }));
              value += 1;
              if (value <= Number(slider.max)) setTimeout(() => requestAnimationFrame(move), 20);
              else setTimeout(() => { globalThis.slid = true; }, 1000);
            };
            move();
            """
        )
        browser.wait("return globalThis.slid")
        steps = browser.run("return Number(document.querySelector('input[type=range]').max) + 1")
        assert steps == STEPS, steps
        return list(browser.run("return globalThis.longTasks"))


def report(
    paints: Sequence[Paint],
    read: dict[str, int],
    size_bytes: int,
    tasks: Sequence[Sequence[float]],
    head: Sequence[str],
) -> str:
    """Return the page."""

    def times(values: Sequence[float]) -> str:
        return f"{statistics.median(values):,.0f} ms ({max(values):,.0f})"

    longest = [max(part, default=math.nan) for part in tasks]
    over = sum(value > 100 for part in tasks for value in part)
    shown = "none over 50 ms" if all(map(math.isnan, longest)) else f"{max(longest):.0f} ms"
    rows = [
        ("first contentful paint", times([each.first for each in paints]), "under 1 s"),
        ("the table is on screen", times([each.table for each in paints]), "under 1 s"),
        ("the treemap is on screen", times([each.treemap for each in paints]), "under 1 s"),
        (
            "the command has printed its address, a new process",
            times([1e3 * each.start_seconds for each in paints]),
            "",
        ),
        (
            "peak memory of the server",
            f"{max(each.peak_bytes for each in paints) / 1e6:,.0f} MB",
            "under 300 MB",
        ),
    ]
    lines = [*head, f"## A checkpoint of {TOTAL_BYTES / 1e9:.0f} GB, {LEAVES:,} leaves", ""]
    lines += [
        "One sparse `.safetensors` file.",
        "",
        "| what | measured | limit |",
        "|---|---:|---:|",
    ]
    lines += [f"| {what} | {value} | {limit} |" for what, value, limit in rows]
    lines += ["", "## The difference of two steps that share 90 % of their bytes", ""]
    lines += [f"Two directories of {size_bytes / 1e6:,.0f} MB each.", ""]
    lines += ["| what | read from both | peak memory of the server |", "|---|---:|---:|"]
    peak = f"{read['peak'] / 1e6:,.0f} MB"
    lines += [
        f"| by digest | {read['digests'] / 1e6:,.1f} MB | |",
        f"| all values that differ | {read['all'] / 1e6:,.1f} MB | {peak} |",
    ]
    lines += ["", f"## A run of {STEPS} steps", ""]
    lines += ["The slider moves over all steps, one every two frames.", ""]
    lines += ["| what | measured | limit |", "|---|---:|---:|"]
    lines += [
        f"| longest task of the page | {shown} | 100 ms |",
        f"| tasks over 100 ms, in {len(tasks)} rounds | {over} | 0 |",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and write benchmarks/viewer.md."""
    from benchmarks.pages import hardware, page_head, versions_of
    from tests.browser import chromium, programs
    from tests.viewer.gpt2_run import save_run

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "viewer.md")
    arguments = parser.parse_args()
    if programs() is None:
        sys.exit("chromium and chromedriver are not installed; the viewer was not measured")
    size_bytes = 400_000_000
    with tempfile.TemporaryDirectory(prefix="cordwood-viewer-") as name, chromium() as browser:
        folder = Path(name)
        browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        browser.driver.set_script_timeout(300)
        large = folder / "large.safetensors"
        sparse_checkpoint(large, leaves=LEAVES, total_bytes=TOTAL_BYTES)
        paints = [paint(browser, large) for _ in range(arguments.rounds)]
        read = difference(browser, *two_steps(folder, leaves=100, size_bytes=size_bytes))
        save_run(folder / "run", count=STEPS)
        tasks = [slide(browser, folder / "run") for _ in range(3)]
        version = browser.driver.capabilities["browserVersion"]
        versions = {**versions_of(PACKAGES), "Chromium": version}
        head = page_head("The viewer", _HOW, versions, hardware(folder))
    text = report(paints, read, size_bytes, tasks, head)
    arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
