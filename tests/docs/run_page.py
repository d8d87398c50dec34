"""Run the blocks of a page of the documentation.

They run one after another, in one namespace and in the current folder: those of Python, and those
of the shell (`sh`). A page may begin with a hidden setting, which GitHub and the site do not show:

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

from tests.children import SRC

ROOT = SRC.parent
# Languages of blocks that are not run: output, and directives of the site.
OUTPUT = {"text", "json", ""}
BLOCK = re.compile(r"^(`{3,})([^`\n]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
SETUP = re.compile(r"<!-- setup\n(.*?)-->", re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block; without directives of the site."""
    blocks = [(language, text) for _, language, text in BLOCK.findall((ROOT / page).read_text())]
    return [block for block in blocks if not block[0].startswith("{")]


def run_page(page: str) -> dict[str, Any]:
    """Run all blocks of a page; return the names that they have defined."""
    names: dict[str, Any] = {"__name__": "page"}
    for code in SETUP.findall((ROOT / page).read_text()):
        run_python(code, f"{page}, setup", names)
    for language, text in blocks_of(page):
        if language == "python":
            run_python(text, page, names)
        elif language == "sh":
            run_shell(text)
        else:
            assert language in OUTPUT, f"{page}: a block of {language!r} is neither run nor output"
    return names


def run_python(code: str, page: str, names: dict[str, Any]) -> None:
    exec(compile(code, page, "exec", dont_inherit=True), names)


def run_shell(commands: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        ["bash", "-euc", commands], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
