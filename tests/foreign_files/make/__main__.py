"""The maker of golden files: python -m tests.foreign_files.make [TOOL-VERSION ...].

Each environment is made in build/foreign, and stays. Its directory in golden/ is written anew,
with `versions.txt`: what was installed. Without names, all are written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent
ROOT = FOLDER.parent.parent
GOLDEN = FOLDER / "golden"
BUILD = ROOT / "build" / "foreign"


def environments() -> dict[str, list[str]]:
    """Return what pip installs, by the name of the environment."""
    lines = (FOLDER / "environments.txt").read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: requirements for name, *requirements in words}


def main(names: list[str]) -> None:
    for name, requirements in environments().items():
        if not names or name in names:
            write_golden(name, requirements)


def write_golden(name: str, requirements: list[str]) -> None:
    """Make the environment of a tool, and let its script write its golden files."""
    python = os.fspath(BUILD / name / "bin" / "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", BUILD / name], check=True)
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([python, "-m", "pip", "install", *quiet, *requirements], check=True)
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tool = name.rpartition("-")[0].replace("-", "_")
    settings = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}
    command = [python, "-m", f"tests.foreign_files.make.{tool}", os.fspath(folder)]
    subprocess.run(command, check=True, env={**os.environ, **settings}, cwd=ROOT)
    versions = subprocess.check_output([python, "-m", "pip", "freeze"], text=True)
    lines = [f"python=={sys.version.split()[0]}", *versions.splitlines()]
    (folder / "versions.txt").write_text("".join([f"{line}\n" for line in lines]))


if __name__ == "__main__":
    main(sys.argv[1:])
