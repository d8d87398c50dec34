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

from tests.tool_environments import ROOT, make_environment, requirements_by_name, run_module

FOLDER = Path(__file__).parent.parent
GOLDEN = FOLDER / "golden"
BUILD = ROOT / "build" / "foreign"


def main(names: list[str]) -> None:
    for name, requirements in requirements_by_name(FOLDER / "environments.txt").items():
        if not names or name in names:
            write_golden(name, requirements)


def write_golden(name: str, requirements: list[str]) -> None:
    """Make the environment of a tool, and let its script write its golden files."""
    python = make_environment(BUILD / name, requirements)
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tool = name.rpartition("-")[0].replace("-", "_")
    script = f"tests.foreign_files.make.{tool}"
    run_module(python, script, os.fspath(folder), KERAS_BACKEND="jax")
    versions = subprocess.check_output([python, "-m", "pip", "freeze"], text=True)
    lines = [f"python=={sys.version.split()[0]}", *versions.splitlines()]
    (folder / "versions.txt").write_text("".join([f"{line}\n" for line in lines]))


if __name__ == "__main__":
    main(sys.argv[1:])
