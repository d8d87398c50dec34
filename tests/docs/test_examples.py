"""The examples and the code of the README, docs/files.md and docs/loading.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import SRC

ROOT = SRC.parent
# The others train: tests/manager/test_integration.py and tests/publishing/test_example.py run them.
EXAMPLES = [
    script
    for script in sorted((ROOT / "examples").glob("*.py"))
    if not script.name.startswith(("train_", "publish_"))
]
README = ROOT / "README.md"
PAGES = [ROOT / "docs" / name for name in ("files.md", "loading.md")]


def run_in(folder: Path, *arguments: str) -> str:
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_script_runs_and_prints(script: Path, tmp_path: Path) -> None:
    output = run_in(tmp_path, str(script))
    assert output.strip(), f"{script.name} prints nothing"


def test_save_and_load_names_every_difference(tmp_path: Path) -> None:
    output = run_in(tmp_path, str(ROOT / "examples" / "save_and_load.py"))
    assert (
        "dense/kernel: expected float32[4,8], found bfloat16[4,8] (cast=True converts it)" in output
    )
    assert "did you mean dense/bias?" in output


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    run_in(tmp_path, "-c", "\n".join(blocks))
    assert (tmp_path / "model.safetensors").is_file()


def test_the_readme_opens_with_an_install_line_the_two_commands_and_a_short_example() -> None:
    text = README.read_text()
    places = [text.index(part) for part in ("pip install", "make demo", "make test", "```python")]
    assert places == sorted(places)
    first = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len(first.splitlines()) <= 12


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
