"""Python code in a child process, which has not imported what this process has."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"


def run_python(
    code: str,
    *arguments: str,
    flags: tuple[str, ...] = (),
    timeout_seconds: float = 400,
    **variables: str,
) -> str:
    """Run code in a child process and return its output; fail with its traceback if it fails.

    Args:
        code: the program; indentation common to all lines is removed.
        arguments: its sys.argv[1:].
        flags: options of the interpreter, before `-c`.
        timeout_seconds: it fails if it takes longer.
        variables: added to its environment.
    """
    environment = {**os.environ, **variables}
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, *flags, "-c", textwrap.dedent(code), *arguments]
    child = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=timeout_seconds,
    )
    assert child.returncode == 0, f"exit status {child.returncode}\n{child.stderr}"
    return child.stdout
