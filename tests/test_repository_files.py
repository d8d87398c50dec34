"""The files that GitHub, pre-commit and pip read agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import cordwood

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = {"3.11": "constraints.txt", "3.12": "constraints-3.12.txt"}


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def pins_of(name: str) -> dict[str, str]:
    requirements = [Requirement(line) for line in (ROOT / name).read_text().splitlines()]
    return {each.name: str(each.specifier).removeprefix("==") for each in requirements}


def test_the_tested_versions_of_python() -> None:
    classifier = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    classified = [match[1] for text in PROJECT["classifiers"] if (match := classifier.match(text))]
    assert classified == list(CONSTRAINTS)
    (job,) = read_yaml(".github/workflows/tests.yml")["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == classified
    assert job["env"]["PYTHON"] == "python${{ matrix.python }}"
    assert job["steps"][-1]["run"] == ".ci/run"
    files = {path.name for path in ROOT.glob("constraints*")} - {
        "constraints-executors.txt",
        "constraints-recipes.txt",
    }
    assert files == set(CONSTRAINTS.values())


@pytest.mark.parametrize("python", CONSTRAINTS)
def test_the_page_of_compatibility_names_the_tested_versions(python: str) -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert f"{pins_of(CONSTRAINTS[python])['jax']} (on Python {python})" in page


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip() for line in recipe[1].replace("$(BIN)", ".venv/bin").splitlines()]
    (local,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"] for hook in local["hooks"]] == commands
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)


def test_the_citation_has_the_metadata_of_the_project() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["version"] == cordwood.__version__
    for field, value in {
        "title": PROJECT["name"],
        "abstract": PROJECT["description"],
        "license": PROJECT["license"],
        "keywords": PROJECT["keywords"],
        "authors": PROJECT["authors"],
    }.items():
        assert citation[field] == value


def test_the_templates_of_issues() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").iterdir())
    assert [path.name for path in templates] == ["bug.md", "feature.md"]
    for path in templates:
        _, front, body = path.read_text().split("---\n", 2)
        assert yaml.safe_load(front).keys() == {"name", "about", "labels"}
        assert body.strip()


def test_a_release_is_built_by_make_and_published_without_a_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert build["permissions"] == {"contents": "read"}
    (run,) = [step for step in build["steps"] if "run" in step]
    assert (run["run"], run["env"]["RELEASE_TAG"]) == ("make dist", "${{ github.ref_name }}")
    assert (publish["needs"], publish["environment"]["name"]) == ("build", "pypi")
    assert publish["permissions"] == {"id-token": "write"}
    assert not [step for step in publish["steps"] if "run" in step]
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "secrets." not in text


def test_a_release_uses_actions_by_their_commits() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    actions = [line for line in text.splitlines() if "uses:" in line]
    assert actions
    for line in actions:
        assert re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
