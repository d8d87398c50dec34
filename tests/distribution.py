"""The check of a built sdist and wheel: their files and metadata, and the wheel in use.

`make dist` builds both and runs this. The wheel is installed into an empty environment outside of
the repository, and saves, loads and exports there, as the program of a user does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

import cordwood
from hatch_build import description, repository_url

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "cordwood"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

DESCRIPTION = description((ROOT / "README.md").read_text(), repository_url(), PROJECT["version"])

# What somebody needs who builds or packages cordwood from the sdist.
SDIST_FILES = (
    *("CHANGELOG.md", "LICENSE", "Makefile", "PKG-INFO", "README.md", "hatch_build.py"),
    "pyproject.toml",
)

_RELEASED = re.compile(r"## (\S+) \(\d{4}-\d\d-\d\d\)")  # a heading of CHANGELOG.md

# The program of a user: it names no file of the repository.
_PROGRAM = """
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import cordwood

repository = Path(sys.argv[1])
assert Path(cordwood.__file__).is_relative_to(sys.prefix), cordwood.__file__
assert not [each for each in sys.path if Path(each).resolve().is_relative_to(repository)], sys.path
tree = {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.zeros(3)}, "step": 7}
for name in ("run/100", "a.safetensors", "a.msgpack"):
    cordwood.save(name, tree)
    loaded = cordwood.load(name, like=tree)
    assert np.array_equal(loaded["dense"]["kernel"], tree["dense"]["kernel"]), loaded
    assert np.array_equal(loaded["dense"]["bias"], tree["dense"]["bias"]), loaded
    assert loaded["step"] == 7, loaded
"""


def package_files() -> set[str]:
    """Return the files of the package as a wheel names them."""
    return {
        str(path.relative_to(PACKAGE.parent))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wheel_problems(wheel: Path) -> list[str]:
    """Return what is wrong with the files and the metadata of a wheel."""
    name, version = PROJECT["name"], PROJECT["version"]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {each for each in archive.namelist() if not each.endswith("/")}
        contents = {
            each: archive.read(f"{info}/{each}").decode() if f"{info}/{each}" in names else ""
            for each in ("METADATA", "entry_points.txt")
        }
    files = {each for each in names if not each.startswith(f"{info}/")}
    problems = [f"{each} is missing" for each in sorted(package_files() - files)]
    problems += [f"{each} is no file of the package" for each in sorted(files - package_files())]
    if not contents["METADATA"]:
        return [*problems, f"{info}/METADATA is missing"]
    metadata = Metadata.from_email(contents["METADATA"])
    for field, value, expected in (
        ("name", metadata.name, name),
        ("version", str(metadata.version), version),
        ("version of the package", cordwood.__version__, version),
        ("requires-python", str(metadata.requires_python), PROJECT["requires-python"]),
        ("license", metadata.license_expression, PROJECT["license"]),
        ("license files", metadata.license_files, PROJECT["license-files"]),
        ("type of the description", metadata.description_content_type, "text/markdown"),
        ("description", metadata.description, DESCRIPTION),
    ):
        if value != expected:
            problems.append(f"{field}: expected {expected!r:.80}, found {value!r:.80}")
    for file in PROJECT["license-files"]:
        if f"{info}/licenses/{file}" not in names:
            problems.append(f"{info}/licenses/{file} is missing")
    for command, function in PROJECT["scripts"].items():
        if f"{command} = {function}" not in contents["entry_points.txt"].splitlines():
            problems.append(f"entry_points.txt: expected {command} = {function}")
    return problems


def sdist_problems(sdist: Path) -> list[str]:
    """Return the files that an sdist lacks."""
    top = f"{PROJECT['name']}-{PROJECT['version']}"
    expected = [*SDIST_FILES, *[f"src/{each}" for each in sorted(package_files())]]
    with tarfile.open(sdist) as archive:
        names = set(archive.getnames())
    return [f"{top}/{each} is missing" for each in expected if f"{top}/{each}" not in names]


def tag_problems(tag: str, changelog: str) -> list[str]:
    """Return why the version cannot be released under a tag, "v" and the version."""
    version = PROJECT["version"]
    problems = []
    if tag != f"v{version}":
        problems.append(f"tag {tag}: expected v{version}, the version of pyproject.toml")
    released = [match[1] for line in changelog.splitlines() if (match := _RELEASED.match(line))]
    if version not in released:
        problems.append(
            f"CHANGELOG.md: expected the heading '## {version} (YYYY-MM-DD)', with the day of the "
            f"release; found {released[0] + ' as the newest' if released else 'no release'}"
        )
    return problems


def use_wheel(wheel: Path) -> None:
    """Install a wheel into an empty environment, and run `cordwood` and a program there.

    Raises RuntimeError if one of the commands does not end as it should.
    """
    constraints = ROOT / (
        "constraints.txt" if sys.version_info < (3, 12) else "constraints-3.12.txt"
    )
    with tempfile.TemporaryDirectory(prefix="cordwood-dist-") as folder:
        environment, work = Path(folder) / "environment", Path(folder) / "work"
        work.mkdir()
        (work / "program.py").write_text(_PROGRAM)
        python, command = str(environment / "bin/python"), str(environment / "bin/cordwood")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        export = [command, "view", "run/100", "--export", "100.html"]
        _run([sys.executable, "-m", "venv", str(environment)], work)
        _run([*install, "-c", str(constraints), str(wheel)], work)
        _run([python, "-m", "pip", "check", "--disable-pip-version-check"], work)
        _run([command, "doctor"], work)
        _run([python, "program.py", str(ROOT)], work)
        _run([command, "verify", "run/100"], work)
        message = _run(export, work, fails=True)
        if f"pip install '{PROJECT['name']}[view]'" not in message:
            raise RuntimeError(f"view without Jinja2: expected the extra to install: {message}")
        _run([*install, "-c", str(constraints), f"{wheel}[view]"], work)
        _run(export, work)
        page = (work / "100.html").read_text()
        if "kernel" not in page or "</html>" not in page:
            raise RuntimeError(f"100.html: expected a page with the leaves, found {page!r:.80}")


def _run(command: Sequence[str], folder: Path, *, fails: bool = False) -> str:
    """Run a command without the repository on its path; return what it writes."""
    print("+", *command, flush=True)
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**variables, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if (done.returncode != 0) is not fails:
        raise RuntimeError(f"{command} exited with {done.returncode}: {done.stdout}")
    return done.stdout


def main() -> None:
    """Check the distributions in a folder; exit with an error if one of them cannot be released."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with one wheel and one sdist")
    parser.add_argument("--tag", help="the tag of the release, such as v0.1.0")
    arguments = parser.parse_args()
    (wheel,), (sdist,) = arguments.folder.glob("*.whl"), arguments.folder.glob("*.tar.gz")
    problems = [
        *[f"{wheel}: {problem}" for problem in wheel_problems(wheel)],
        *[f"{sdist}: {problem}" for problem in sdist_problems(sdist)],
    ]
    if arguments.tag:
        problems += tag_problems(arguments.tag, (ROOT / "CHANGELOG.md").read_text())
    if problems:
        sys.exit("\n".join(problems))
    use_wheel(wheel.resolve())
    print(f"{wheel.name} and {sdist.name}: everything works")


if __name__ == "__main__":
    main()
