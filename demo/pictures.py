"""The pictures of the viewer in docs/pictures: `make pictures` takes them in a real Chromium.

A run of a GPT-2-like model is saved, with a frozen block and a block that gets NaNs. The command
`cordwood view` shows what changed between two of its steps, and a browser takes a screenshot in
each theme.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.viewer.browser import Browser, chromium
from tests.viewer.gpt2_run import Faults, save_run

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
_WIDTH, _HEIGHT = 1200, 860
_MAX_BYTES = 200_000  # of one picture
# An eighth of GPT-2's width and vocabulary.
_MODEL_WIDTH, _VOCABULARY = 96, 6_283


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


def take(browser: Browser, name: str, url: str, ready_css: str) -> None:
    """Take a picture of a page in each theme, once an element is there.

    Raises ValueError if a picture is too large for the repository.
    """
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.size(_WIDTH, _HEIGHT)
        browser.open(url)
        browser.find(ready_css)
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
            take(browser, "checkpoint", url, "main svg, main canvas")
        with viewing(folder, "run/500", "run/600") as url:
            take(browser, "difference", url, "main svg, main canvas")
