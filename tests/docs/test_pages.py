"""The code of the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from cordwood.cli.main import cli
from cordwood.loading import locate_step
from tests.docs.run_page import BLOCK, OUTPUT, ROOT, blocks_of, run_page

# Pages with a test that also checks what their blocks do.
ELSEWHERE = {
    "README.md": "tests/docs/test_examples.py",
    "docs/files.md": "tests/docs/test_examples.py",
    "docs/loading.md": "tests/docs/test_examples.py",
    "docs/manager.md": "tests/manager/test_manager_docs.py",
    "docs/cli.md": "tests/cli/test_transcripts.py",
    "docs/get-started.md": "tests/docs/test_how_to.py",
    **{
        f"docs/how-to/{page.name}": "tests/docs/test_how_to.py"
        for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    },
}

# What Slurm and Kubernetes set for one job of an array.
ARRAY_VARIABLES = {"SLURM_ARRAY_TASK_COUNT": "16", "JOB_COMPLETION_INDEX": "3"}


def pages() -> list[str]:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    return sorted(str(file.relative_to(ROOT)) for file in files)


WITH_CODE = [
    page for page in pages() if any(language not in OUTPUT for language, _ in blocks_of(page))
]


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ELSEWHERE])
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", ELSEWHERE)
def test_a_page_that_is_run_elsewhere(page: str) -> None:
    assert page in WITH_CODE
    test = ROOT / ELSEWHERE[page]
    assert Path(page).name in test.read_text() or "cli_transcripts" in test.read_text()


def indented_commands() -> list[tuple[str, str]]:
    """Return the command lines in indented blocks: examples with paths that do not exist."""
    commands: list[tuple[str, str]] = []
    for page in pages():
        text = re.sub(r" *\\\n *", " ", BLOCK.sub("", (ROOT / page).read_text()))
        text = re.sub(r"\$\(\(.*?\)\)", "3", text)  # arithmetic of the shell
        lines = re.findall(r"^ {4}(?:\w+\$ )?(cordwood [a-z].*?)(?: {2,}.*)?$", text, re.MULTILINE)
        commands += [(page, line) for line in lines]
    return commands


def test_there_are_indented_commands() -> None:
    assert len(indented_commands()) >= 10


@pytest.mark.parametrize(("page", "line"), indented_commands())
def test_the_arguments_of_an_indented_command_are_valid(
    page: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate_step, "is_nickname", lambda _: False)  # asks no store
    for variable, value in ARRAY_VARIABLES.items():
        monkeypatch.setenv(variable, value)
    name, *arguments = map(os.path.expandvars, shlex.split(line, comments=True)[1:])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"{page}: {line}"
    command.make_context(name, arguments).close()
