"""Files of the wheel and the sdist, as far as they can be checked without building them."""

from __future__ import annotations

import re
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import cordwood
from hatch_build import description
from tests.distribution import (
    DESCRIPTION,
    PACKAGE,
    PROJECT,
    ROOT,
    SDIST_FILES,
    package_files,
    sdist_problems,
    tag_problems,
    wheel_problems,
)

VERSION = PROJECT["version"]
INFO = f"cordwood-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.4
Name: cordwood
Version: {VERSION}
License-Expression: {PROJECT["license"]}
License-File: LICENSE
Requires-Python: {PROJECT["requires-python"]}
Description-Content-Type: text/markdown

{DESCRIPTION}"""


def wheel_of(path: Path, **changes: str | None) -> Path:
    """Write what the checks read of a wheel; change or leave out files."""
    files: dict[str, str | None] = dict.fromkeys(package_files(), "")
    files |= {
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/licenses/LICENSE": "",
        f"{INFO}/entry_points.txt": "[console_scripts]\ncordwood = cordwood.cli.main:main\n",
    }
    with zipfile.ZipFile(path / "x.whl", "w") as archive:
        for name, text in (files | changes).items():
            if text is not None:
                archive.writestr(name, text)
    return path / "x.whl"


def test_a_wheel_has_every_file_of_the_package_and_no_other() -> None:
    included = WheelBuilder(str(ROOT)).recurse_included_files()
    assert {file.distribution_path for file in included} == package_files()
    assert {"cordwood/py.typed", "cordwood/viewer/templates/page.html"} < package_files()


def test_an_sdist_has_what_builds_a_wheel() -> None:
    included = SdistBuilder(str(ROOT)).recurse_included_files()
    files = {file.distribution_path for file in included}
    assert {f"src/{each}" for each in package_files()} <= files
    # The builder adds the others by itself.
    assert set(SDIST_FILES) - files <= {"LICENSE", "PKG-INFO", "pyproject.toml"}


def test_the_package_knows_its_version() -> None:
    assert cordwood.__version__ == VERSION


def test_the_command_is_a_function_of_the_package() -> None:
    module, name = PROJECT["scripts"]["cordwood"].split(":")
    assert f"\ndef {name}(" in (PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text()


def test_a_complete_wheel_has_no_problem(tmp_path: Path) -> None:
    assert wheel_problems(wheel_of(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cordwood/py.typed": None}, "cordwood/py.typed is missing"),
        ({"tests/test_map.py": ""}, "tests/test_map.py is no file of the package"),
        ({f"{INFO}/METADATA": None}, f"{INFO}/METADATA is missing"),
        (
            {f"{INFO}/METADATA": METADATA.replace(f"Version: {VERSION}", "Version: 99")},
            f"version: expected '{VERSION}', found '99'",
        ),
        (
            {f"{INFO}/METADATA": METADATA.replace("Python: >=3.11", "Python: >=3.5")},
            "requires-python: expected '>=3.11', found '>=3.5'",
        ),
        ({f"{INFO}/licenses/LICENSE": None}, f"{INFO}/licenses/LICENSE is missing"),
        (
            {f"{INFO}/entry_points.txt": "[console_scripts]\n"},
            "entry_points.txt: expected cordwood = cordwood.cli.main:main",
        ),
    ],
)
def test_each_fault_of_a_wheel_is_a_problem(
    tmp_path: Path, changes: dict[str, str | None], problem: str
) -> None:
    assert wheel_problems(wheel_of(tmp_path, **changes)) == [problem]


def test_the_description_is_the_readme(tmp_path: Path) -> None:
    changes = {f"{INFO}/METADATA": METADATA[:1000]}
    (problem,) = wheel_problems(wheel_of(tmp_path, **changes))
    assert problem.startswith("description: expected '# cordwood")


LINKS = """[a page](docs/a.md#part), [a site](https://example.com), [below](#below)
<picture>
  <source srcset="docs/dark.png">
  <img src="docs/light.png" alt="A picture">
</picture>

The end.
"""


def test_the_links_of_the_description_lead_to_the_files_of_its_version() -> None:
    text = description(LINKS, "https://example.com/cordwood", "1.2")
    assert "[a page](https://example.com/cordwood/blob/v1.2/docs/a.md#part)" in text
    assert "[a site](https://example.com), [below](#below)" in text
    assert 'srcset="https://example.com/cordwood/raw/v1.2/docs/dark.png"' in text
    assert 'src="https://example.com/cordwood/raw/v1.2/docs/light.png"' in text


def test_the_description_has_no_relative_links_where_the_repository_is_unknown() -> None:
    text = description(LINKS, None, "1.2")
    assert text == "a page, [a site](https://example.com), [below](#below)\nThe end.\n"
    readme = description((ROOT / "README.md").read_text(), None, VERSION)
    assert not re.findall(r"\]\((?!https://|#)|src(?:set)?=\"(?!https://)", readme)


def test_a_file_that_an_sdist_lacks_is_a_problem(tmp_path: Path) -> None:
    names = {*SDIST_FILES, *[f"src/{each}" for each in package_files()]} - {"LICENSE"}
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"cordwood-{VERSION}/{name}"), BytesIO())
    assert sdist_problems(tmp_path / "x.tar.gz") == [f"cordwood-{VERSION}/LICENSE is missing"]


def test_a_tag_needs_its_version_and_a_dated_section_of_the_changelog() -> None:
    changelog = f"# Changelog\n\n## {VERSION} (2027-01-31)\n"
    assert tag_problems(f"v{VERSION}", changelog) == []
    (problem,) = tag_problems("v0.0.9", changelog)
    assert problem == f"tag v0.0.9: expected v{VERSION}, the version of pyproject.toml"
    (problem,) = tag_problems(
        f"v{VERSION}", f"## {VERSION} (unreleased)\n\n## 0.0.1 (2026-01-31)\n"
    )
    assert problem.endswith("with the day of the release; found 0.0.1 as the newest")
    (problem,) = tag_problems(f"v{VERSION}", f"## {VERSION} (unreleased)\n")
    assert problem.endswith("with the day of the release; found no release")
