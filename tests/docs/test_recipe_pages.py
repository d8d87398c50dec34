"""The pages in docs/recipes: they show the tables of the shipped recipes."""

from __future__ import annotations

import pytest

from cordwood.recipes.shipped_recipes import FAMILIES
from tests.docs.recipe_pages import FOLDER, overview, pages, split_readme


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_family_shows_its_tables(family: str) -> None:
    text = (FOLDER / f"{family}.md").read_text()
    assert text == pages()[f"{family}.md"], "run `make recipe-pages`"


def test_the_overview_lists_all_families() -> None:
    text = (FOLDER / "README.md").read_text()
    before, after = split_readme(text)
    assert text == before + overview() + after, "run `make recipe-pages`"
    pages_of_families = {path.stem for path in FOLDER.glob("*.md")} - {"README"}
    assert pages_of_families == set(FAMILIES)
