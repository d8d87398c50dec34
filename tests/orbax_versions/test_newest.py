"""Trees that cordwood saves for Orbax, restored in all ways by the newest version; the page."""

from __future__ import annotations

from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from tests.orbax_versions.__main__ import FOLDER, PAGE
from tests.orbax_versions.outcomes import outcomes_of
from tests.orbax_versions.page import undocumented
from tests.orbax_versions.read_together import READERS
from tests.orbax_versions.trees import GROUPS, TREES
from tests.orbax_versions.write import refusals, write_cases
from tests.tool_environments import requirements_by_name

SMALL = [name for name in (*TREES, "2 processes") if name != "20,000 leaves"]


@pytest.mark.parametrize("tree", SMALL)
def test_the_newest_orbax_restores_each_tree_in_all_ways(tree: str, tmp_path: Path) -> None:
    write_cases(tmp_path, [tree])
    outcomes = {f"orbax-{ocp.__version__}": {tree: outcomes_of(tmp_path / tree)}}
    assert undocumented(outcomes) == []


def test_the_page_has_all_trees_versions_and_refusals() -> None:
    """If it fails, run make orbax-versions."""
    page = PAGE.read_text()
    versions = [name.removeprefix("orbax-") for name in environments()]
    head = " | ".join(["tree", *[f"Orbax {version}" for version in versions]])
    assert f"| {head} |" in page
    for tree in (*TREES, *GROUPS, *READERS):
        assert f"\n| {tree} | " in page
    for message in refusals().values():
        assert f"`{message}`" in page


def test_the_newest_of_the_environments_is_the_one_of_the_tests() -> None:
    requirements = list(environments().values())[-1]
    assert f"orbax-checkpoint=={ocp.__version__}" in requirements


def environments() -> dict[str, list[str]]:
    return requirements_by_name(FOLDER / "environments.txt")
