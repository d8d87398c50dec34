"""Run the command on small checkpoints and write docs/cli.md: python -m demo.cli_transcripts.

Each command runs in a pseudo-terminal, and the page shows the final screen. One test compares the
page with the output of the commands; another types some of the commands in tmux.
"""

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

`pip install .` in a clone installs the command. `python -m cordwood` runs the same command. Every
command has two options: `--help` prints examples, and `--json` prints one JSON document.

The examples show what the commands print in a terminal of 100 columns and 40 lines.

| exit code | meaning |
|---|---|
| 0 | success: no difference, no damage, no problem |
| 1 | `diff` found differences, `verify` damage, `doctor` a problem; `rm`, `prune` left something |
| 2 | the arguments are wrong |
| 3 | the checkpoint or leaf does not exist, does not fit, or could not be read or written |
| 130 | interrupted |

`run/latest` is the newest complete step in the directory or URL `run`, and `run/best` the best by
its metric. Every command that reads accepts both, and so does every function: see
[manager.md](manager.md#read-the-newest-or-the-best-step-by-a-path). If `run` has an entry of that
name, it is that entry.

To set up completion, run `eval "$(_CORDWOOD_COMPLETE=bash_source cordwood)"`. Use `zsh_source` for
zsh and `fish_source` for fish. Completion covers commands, options and files. After a local path it
also completes the key paths of the checkpoint: `cordwood show run/100 par<TAB>`.

Names, texts and paths may contain control characters or invisible formatting characters. The
command prints these escaped, as `\\x1b` or `\\u202e`, and in JSON as `\\u001b`. If the output
is not a terminal, `cat` prints a string unchanged.
"""

# What a section says below its examples.
NOTES = {
    "Look at one leaf": """
A value without statistics (a str, bytes, times, PRNG keys) is printed. Of more than 1 MiB, the
beginning is read and printed, with a line that says so; `--json` then has `"complete": false` and
`size_bytes`.
""",
    "Convert to another format": """
`--recipe` converts to the layout of another library, with the sizes in `--config`, and `--inverse`
goes back: [how-to/recipes.md](how-to/recipes.md#as-a-file).
""",
    "Remove a checkpoint or a run": """
Of a checkpoint of the hub, the weights are those that its index or the names `model-*-of-N` tell. A
`README.md`, a `LICENSE` and other files of weights may be yours: they are named, and nothing is
removed until they lie elsewhere.
""",
}

_SAVED_SECONDS = 1_764_000_000.0  # 2025-11-24 16:00 UTC

# Headings and the commands under each.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "List the contents",
        (
            "cordwood ls run/100",
            "cordwood ls run/100 '**/kernel' --sort size",
            "cordwood ls run/100 --depth 1",
            "cordwood info run/100",
            "cordwood steps run",
        ),
    ),
    (
        "Look at one leaf",
        (
            "cordwood show run/100 params/embed",
            "cordwood cat run/100 'params/head/kernel[0:2,:]'",
            "cordwood cat run/100 step --json",
        ),
    ),
    (
        "Compare two checkpoints",
        (
            "cordwood diff run/100 run/200",
            "cordwood diff run/100 run/200 --stats",
            "cordwood diff run/100 model.msgpack --select params",
        ),
    ),
    (
        "Check for damage",
        (
            "cordwood verify run/100",
            "cordwood verify run/100 --sample 50%",
            "cordwood verify run",
        ),
    ),
    (
        "Look in the browser",
        ("cordwood view --help",),
    ),
    (
        "Serve to other machines",
        ("cordwood serve --help",),
    ),
    (
        "Convert to another format",
        (
            "cordwood convert run/100 params.safetensors --select params --cast bf16",
            "cordwood convert run/100 all.msgpack",
        ),
    ),
    (
        "Copy to another place",
        ("cordwood copy --help",),
    ),
    (
        "Write what changes, and apply it",
        ("cordwood delta --help",),
    ),
    (
        "Average and combine",
        (
            "cordwood average run mean --last 2 --others last",
            "cordwood combine --help",
            "cordwood merge-lora --help",
        ),
    ),
    (
        "Make steps readable for Orbax",
        ("cordwood index --help",),
    ),
    (
        "Remove a checkpoint or a run",
        ("cordwood rm run/100 --dry-run", "cordwood rm run/latest", "cordwood rm --help"),
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
    """Save two steps of a run and one file, with a fixed clock."""
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
    """Return a command, its final screen, and its exit code unless that is 0."""
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
    """Return the whole page."""
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoints(folder)
        for title, commands in SECTIONS:
            shown = "\n".join([transcript(folder, command) for command in commands])
            parts.append(f"\n## {title}\n\n```console\n{shown}```\n{NOTES.get(title, '')}")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
