"""Environments of other tools with fixed versions, made in build/ and left there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirements_by_name(file: Path) -> dict[str, list[str]]:
    """Return what pip installs, by the name of the environment, from a file with one a line."""
    lines = file.read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: requirements for name, *requirements in words}


def make_environment(folder: Path, requirements: list[str]) -> str:
    """Make an environment, or bring it up to date; return the path of its Python."""
    python = os.fspath(folder / "bin" / "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([python, "-m", "pip", "install", *quiet, *requirements], check=True)
    return python


def run_module(python: str, module: str, *arguments: str, **variables: str) -> None:
    """Run a module of the repository in an environment that has no cordwood."""
    variables = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    subprocess.run(
        [python, "-m", module, *arguments], check=True, env={**os.environ, **variables}, cwd=ROOT
    )
