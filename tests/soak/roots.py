"""What lies in a root, found without any code of cordwood's: steps, strangers, disk blocks.

The steps are read by safetensors, as the file of Hugging Face's beside the index says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "HUGGING_FACE_NAME",
    "blocks_bytes",
    "inside",
    "read_tensors",
    "strangers",
    "whole_steps",
]

HUGGING_FACE_NAME = "model.safetensors.index.json"

_INDEX = "cordwood.json"
_LOCK = ".steps.cordwood-lock"  # who is killed while it holds that leaves the one file
_STEP_LOCK = f".{_INDEX}.cordwood-lock"  # and so it is with each step's


def whole_steps(root: str | os.PathLike[str]) -> list[int]:
    """The steps whose index is there, increasing."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return sorted(
        int(name)
        for name in names
        if name.isdigit() and os.path.exists(os.path.join(root, name, _INDEX))
    )


def strangers(root: str | os.PathLike[str]) -> list[str]:
    """Entries of a root that are no whole step, but for the one file that is a lock."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return sorted({*names} - {*map(str, whole_steps(root))} - {_LOCK})


def inside(step: Path) -> list[str]:
    """What lies in a step's directory beside what its index names, but for the file of its lock."""
    text = (step / _INDEX).read_text()
    return [
        name
        for name in os.listdir(step)
        if name not in (_INDEX, HUGGING_FACE_NAME, _STEP_LOCK) and f'"{name}"' not in text
    ]


def read_tensors(step: Path) -> dict[str, Any]:
    """The arrays of a step by name."""
    from safetensors.numpy import load_file

    files = json.loads((step / HUGGING_FACE_NAME).read_text())["weight_map"]
    found: dict[str, Any] = {}
    for file in sorted(set(files.values())):
        tensors = load_file(step / file)
        found.update({name: tensors[name] for name in tensors if files.get(name) == file})
    assert found.keys() == files.keys()
    return dict(sorted(found.items()))


def blocks_bytes(root: str | os.PathLike[str]) -> int:
    """What all in a root takes of the disk, a file of several names once."""
    return 512 * sum(dict(_blocks(root)).values())


def _blocks(root: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                found = os.lstat(path)
            except FileNotFoundError:  # it has just been removed
                continue
            yield found.st_ino, found.st_blocks
