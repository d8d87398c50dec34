"""The code of the documentation runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.run_page import OUTPUT, ROOT, blocks_of, run_page

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
