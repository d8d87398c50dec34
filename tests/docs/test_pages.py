"""The code of the documentation runs as it stands.

The blocks of a page run one after another, in one namespace and in an empty folder: those of
Python, and those of the shell (`sh`). A page may begin with a hidden setting, which GitHub and the
site do not show:

    <!-- setup
    state = ...
    -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.children import SRC

ROOT = SRC.parent
# Pages with a test that also checks what their blocks do.
ELSEWHERE = {
    "README.md": "tests/docs/test_examples.py",
    "docs/files.md": "tests/docs/test_examples.py",
    "docs/loading.md": "tests/docs/test_examples.py",
    "docs/frameworks.md": "tests/docs/test_frameworks.py",
    "docs/hugging-face.md": "tests/docs/test_hugging_face.py",
    "docs/manager.md": "tests/manager/test_manager_docs.py",
    "docs/moving-over.md": "tests/manager/test_manager_docs.py",
    "docs/cli.md": "tests/cli/test_transcripts.py",
}
# Languages of blocks that are not run: output, and directives of the site.
OUTPUT = {"text", "json", ""}
BLOCK = re.compile(r"^(`{3,})([^`\n]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
SETUP = re.compile(r"<!-- setup\n(.*?)-->", re.DOTALL)


def pages() -> list[str]:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    return sorted(str(file.relative_to(ROOT)) for file in files)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block; without directives of the site."""
    blocks = [(language, text) for _, language, text in BLOCK.findall((ROOT / page).read_text())]
    return [block for block in blocks if not block[0].startswith("{")]


WITH_CODE = [
    page for page in pages() if any(language not in OUTPUT for language, _ in blocks_of(page))
]


def run_shell(commands: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        ["bash", "-euc", commands], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ELSEWHERE])
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for code in SETUP.findall((ROOT / page).read_text()):
        exec(compile(code, f"{page}, setup", "exec"), names)
    for language, text in blocks_of(page):
        if language == "python":
            exec(compile(text, page, "exec"), names)
        elif language == "sh":
            run_shell(text)
        else:
            assert language in OUTPUT, f"{page}: a block of {language!r} is neither run nor output"


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_is_run_elsewhere(page: str) -> None:
    assert page in WITH_CODE
    test = ROOT / ELSEWHERE[page]
    assert Path(page).name in test.read_text() or "cli_transcripts" in test.read_text()
