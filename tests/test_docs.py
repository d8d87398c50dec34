"""The pages of the documentation: each is in the contents, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from contents_from_tables import rows_of

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "benchmarks", "examples")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for each in FOLDERS for page in (ROOT / each).rglob("*.md"))]
)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def links_of(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return LINK.findall(text)


def test_tables_of_links_lead_to_every_page_once() -> None:
    front = "docs/README"
    pages, queue = [front], [front]
    while queue:
        page = queue.pop()
        links = [row.page for row in rows_of(page, (ROOT / f"{page}.md").read_text())]
        if page.endswith(("README", "measurements")) and page != "README":
            pages += links
            queue += links
    assert sorted(pages) == sorted(str(page.relative_to(ROOT).with_suffix("")) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"
