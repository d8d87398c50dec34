"""The code of docs/notebooks.md, executed as a notebook: outputs hold HTML and progress bars."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.children import SRC

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

PAGE = SRC.parent / "docs" / "notebooks.md"

# A save in the background, in one cell a loop of loads, and a load that fails.
MORE_CELLS = [
    'cordwood.save_async("other", state, progress=True).wait()',
    'for _ in range(3):\n    cordwood.load("other", progress=True)',
    """
def fail(*arguments, **options):
    raise OSError("the disk failed")

from cordwood.loading import load_tree as module
module.restore_targets = fail
try:
    cordwood.load("other", progress=True)
except OSError as e:
    print(e)
""",
]


def outputs_of(cells: list[str], folder: Path) -> list[list[Any]]:
    """Execute cells in a new kernel; return the data or text of the outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [
        [output.get("data", {}).get("text/html") or output.get("text") for output in cell.outputs]
        for cell in notebook.cells
    ]


def test_a_notebook_shows_html_and_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    outputs = outputs_of([*blocks, *MORE_CELLS], tmp_path)
    checkpoint, leaf, part, difference, load, manager, report, drawn = outputs[: len(blocks)]
    background, loop, failed = outputs[len(blocks) :]

    assert len(checkpoint) == len(leaf) == len(difference) == 1
    assert "<b>safetensors checkpoint</b>" in checkpoint[0]
    assert "float32[256,64]  64.0 KiB" in checkpoint[0]
    assert "<b>params/w</b>" in leaf[0]
    assert "<b>1 difference</b>" in difference[0]
    assert part == [None]  # an array, which is text
    assert [re.sub(r"in [\d.]+ s", "in 0 s", each) for each in load] == [bar_of("loading")]
    saving, restoring, restored = manager
    assert "saving: done, 64.5 KiB in " in saving
    assert "restoring: done, 64.5 KiB in " in restoring
    assert "<b>step 7</b>" in restored
    assert report[0].startswith("0 of ")
    assert any("treescope" in each for each in drawn if each)

    assert len(background) == 1
    assert "saving: done, 64.5 KiB in " in background[0]
    assert len(loop) == 1  # one line for the loop
    assert "loading: failed" in failed[0]
    assert failed[1:] == ["the disk failed\n"]


def bar_of(verb: str) -> str:
    style = "font-family:monospace;white-space:nowrap"
    return f'<div style="{style}">{verb}: done, 64.5 KiB in 0 s</div>'
