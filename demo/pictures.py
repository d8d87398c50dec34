"""The pictures in docs/pictures: `make pictures` takes them in a real Chromium.

A run of a GPT-2-like model is saved, with a frozen block and a block that gets NaNs. The command
`cordwood view` shows one of its steps, and what changed between two of them. A page like a notebook
shows the HTML of a few values. A browser takes a screenshot of each, light and dark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cordwood
from tests.browser import Browser, chromium
from tests.viewer.gpt2_run import Faults, save_run

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
_WIDTH, _HEIGHT = 1280, 1000
_MAX_BYTES = 200_000  # of one picture
# An eighth of GPT-2's width and vocabulary.
_MODEL_WIDTH, _VOCABULARY = 96, 6_283

# The treemap is drawn in small tasks.
_ALL_DRAWN = """
return [...document.querySelectorAll("canvas")].every((canvas) => {
  const context = canvas.getContext("2d");
  return context.getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
});
"""


@contextmanager
def viewing(folder: Path, *arguments: str) -> Iterator[str]:
    """Run `cordwood view` in a folder for the block, and yield the address that it prints."""
    command = [sys.executable, "-m", "cordwood", "view", "--no-browser", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=os.environ, stdout=subprocess.PIPE, text=True
    ) as viewer:
        assert viewer.stdout is not None
        try:
            for line in viewer.stdout:
                address = re.search(r"http://\S+", line)
                if address:
                    yield address[0]
                    return
            raise RuntimeError("cordwood view has printed no address")
        finally:
            viewer.terminate()


_NOTEBOOK = """<!doctype html><meta charset="utf-8"><style>
:root { color-scheme: light dark; background: light-dark(#fff, #111); }
body { margin: 12px 20px; color: light-dark(#1f2328, #e6e6e6); font-size: 14px; }
pre { padding: 8px 10px; background: light-dark(#f5f5f5, #212121); border-radius: 3px; }
</style><main>"""


def notebook_page(root: Path) -> str:
    """Return a page with a few values of a run, as a notebook shows them."""
    with cordwood.open(root / "500") as checkpoint:
        cells: list[tuple[str, Any]] = [
            ('checkpoint = cordwood.open("run/500")\ncheckpoint', checkpoint),
            ('checkpoint["params/wte/embedding"]', checkpoint["params/wte/embedding"]),
            ('cordwood.verify("run/500")', cordwood.verify(root / "500")),
        ]
        shown = [f"<pre>{escape(code)}</pre>{value._repr_html_()}" for code, value in cells]
    html = "".join(shown).replace(str(root), root.name)
    return _NOTEBOOK + html.replace("<details><summary>params/", "<details open><summary>params/")


def take(browser: Browser, name: str, url: str, text: str, *, folds: bool = False) -> None:
    """Take a picture of a page in each theme, once it shows a text; `folds` folds its table first.

    Raises ValueError if a picture is too large for the repository.
    """
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.size(_WIDTH, _HEIGHT)
        browser.driver.get("about:blank")  # otherwise the same address is not loaded again
        browser.driver.get(url)
        browser.wait_text(text)
        browser.wait("return document.querySelector('main[aria-busy]') === null")
        browser.wait(_ALL_DRAWN)
        if folds:
            browser.click("button", "Fold all")
            browser.run("window.scrollTo(0, 0); document.activeElement.blur()")
        picture = browser.screenshot(f"{name}-{theme}", full=False).read_bytes()
        if len(picture) > _MAX_BYTES:
            raise ValueError(f"{name}-{theme}.png has {len(picture)} bytes, more than {_MAX_BYTES}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}-{theme}.png").write_bytes(picture)


if __name__ == "__main__":
    with TemporaryDirectory() as temporary, chromium() as browser:
        folder = Path(temporary)
        save_run(
            folder / "run",
            count=6,
            width=_MODEL_WIDTH,
            vocabulary=_VOCABULARY,
            faults=Faults(nan_from=600),
        )
        with viewing(folder, "run/500") as url:
            take(browser, "checkpoint", url, "Bytes")
        with viewing(folder, "run/500", "run/600") as url:
            take(browser, "difference", url, "leaves differ", folds=True)
        (folder / "notebook.html").write_text(notebook_page(folder / "run"))
        take(browser, "notebook", (folder / "notebook.html").as_uri(), "verified")
