"""The files that a save, a load and a manager's save enter: docs/design/0012 lists them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "design" / "0012-the-path-of-a-leaf.md"

# Prints the files whose functions run during each call, in order. What a first call imports or
# prepares is left out, and so is what imports run.
SCRIPT = """
import json, sys, threading
from pathlib import Path
import jax.numpy as jnp
import numpy as np
import cordwood

source, folder = Path(cordwood.__file__).parent, sys.argv[1]
tree = {"params": {"w": jnp.ones((64, 64)), "b": np.zeros(8, np.float32)}, "step": 3}
manager = cordwood.CheckpointManager(f"{folder}/run")

def saved(step):
    manager.save(step, tree)
    manager.wait()

def entered(call, *arguments, **options):
    files = {}

    def enter(frame, event, _):
        code = frame.f_code
        path = Path(code.co_filename)
        outer = frame.f_back.f_code.co_name if frame.f_back else ""
        if event == "call" and "<module>" not in (code.co_name, outer) and source in path.parents:
            files.setdefault(path.relative_to(source).as_posix())

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        call(*arguments, **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files)

cordwood.save(f"{folder}/first", tree)
cordwood.load(f"{folder}/first", like=tree)
saved(0)
print(json.dumps({
    "save(directory, tree)": entered(cordwood.save, f"{folder}/second", tree),
    "load(directory, like=tree)": entered(cordwood.load, f"{folder}/second", like=tree),
    "manager.save(step, tree)": entered(saved, 1),
}))
"""


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("path")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], check=True, capture_output=True, text=True
    )
    files: dict[str, list[str]] = json.loads(run.stdout)
    return files


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        ("save(directory, tree)", 30),
        ("load(directory, like=tree)", 30),
        ("manager.save(step, tree)", 40),
    ],
)
def test_a_call_enters_few_files_and_the_page_lists_them(
    entered: dict[str, list[str]], call: str, limit: int
) -> None:
    _, section = PAGE.read_text().split(f"## `{call}`\n", 1)
    listed = re.findall(r"^\d+\. `([\w/]+)`", section.split("\n## ")[0], re.MULTILINE)
    names = [file.removesuffix(".py").removesuffix("/__init__") for file in entered[call]]
    assert sorted(listed) == sorted(names)
    assert len(names) <= limit
