"""Run the command on small checkpoints and write docs/cli.md: python -m demo.cli_transcripts."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

import cordwood
from demo.terminal import run_in_terminal

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEAD = """# The command `cordwood`

Installing the package (`pip install .` in a clone) installs the command; `python -m cordwood` is
the same. Every command takes `--help`, with examples, and `--json`, which prints one JSON document.
This page is written by `python -m demo.cli_transcripts`, which runs each command in a
pseudo-terminal of 100 columns and 40 lines and prints what stands on its screen in the end; a test
compares it with what the command prints, and another types some of it in tmux.

| exit code | meaning |
|---|---|
| 0 | done; no difference, no damage, no problem |
| 1 | the answer is no: `diff` found differences, `verify` damage, `doctor` a problem |
| 2 | the arguments are wrong |
| 3 | there is no such checkpoint or leaf, or it could not be read or written |
| 130 | interrupted |

`run/latest` is the newest whole step in the directory `run`, in every command that reads, unless
something of that name lies there.

Completion: `eval "$(_CORDWOOD_COMPLETE=bash_source cordwood)"`; `zsh_source` and `fish_source`
are for those shells. It completes commands, options, files, and after a local path the key paths in
it: `cordwood show run/100 par<TAB>`.

Control characters and invisible formatting characters in names, texts and paths are printed
escaped, as `\\x1b` or `\\u202e`, and in JSON as `\\u001b`. `cat` prints a string as it is where its
output is no terminal.
"""

_SAVED_SECONDS = 1_764_000_000.0  # 2025-11-24 16:00 UTC

# Headings, and commands; a name before a colon is what they are run as.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "What is in it",
        (
            "cordwood ls run/100",
            "cordwood ls run/100 '**/kernel' --sort size",
            "cordwood ls run/100 --depth 1",
            "cordwood info run/100",
            "cordwood steps run",
        ),
    ),
    (
        "One leaf",
        (
            "cordwood show run/100 params/embed",
            "cordwood cat run/100 'params/head/kernel[0:2,:]'",
            "cordwood cat run/100 step --json",
        ),
    ),
    (
        "Two checkpoints",
        (
            "cordwood diff run/100 run/200",
            "cordwood diff run/100 model.msgpack --select params",
        ),
    ),
    (
        "Whether it is whole",
        (
            "cordwood verify run/100",
            "cordwood verify run/100 --sample 50%",
            "cordwood verify run",
        ),
    ),
    (
        "Another format",
        (
            "cordwood convert run/100 params.safetensors --select params --cast bf16",
            "cordwood convert run/100 all.msgpack",
        ),
    ),
    (
        "Mistakes",
        (
            "cordwood ls run/100 'parms/**'",
            "cordwood cat run/100 params/head/kernl",
            "cordwood show run/latest params",
            "cordwood ls run/300",
            "cordwood lst run/100",
        ),
    ),
)


def make_checkpoints(folder: Path) -> None:
    """Save two steps of a run, and a file, at a time that is always the same."""
    random = np.random.default_rng(0)
    kernel = np.arange(24, dtype=np.float32).reshape(4, 6)
    state = {
        "params": {
            "embed": random.standard_normal((512, 64)).astype(np.float32),
            "head": {"kernel": kernel, "bias": np.zeros(6)},
        },
        "opt_state": [{"mu": np.zeros((4, 6), np.float32)}, {}],
        "step": 100,
    }
    cordwood.save(folder / "model.msgpack", state)
    with (
        mock.patch("time.time", return_value=_SAVED_SECONDS),
        cordwood.CheckpointManager(folder / "run", background=False, rewrite_every=1) as manager,
    ):
        manager.save(100, state, metrics={"loss": 0.25})
        kernel[1, 2] += 0.125
        manager.save(200, {**state, "step": 200}, metrics={"loss": 0.125})


def transcript(folder: Path, command: str) -> str:
    """A command, what it leaves on a terminal's screen, and its exit code if that is not 0."""
    arguments = [sys.executable, "-m", "cordwood", *shlex.split(command)[1:]]
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "TZ": "UTC",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    shown = run_in_terminal(arguments, folder, environment)
    code = f"[exit code {shown.code}]\n" if shown.code else ""
    return f"$ {command}\n{shown.text}{code}"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoints(folder)
        for title, commands in SECTIONS:
            shown = "\n".join([transcript(folder, command) for command in commands])
            parts.append(f"\n## {title}\n\n```console\n{shown}```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
