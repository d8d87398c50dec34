"""The contents of a root, read without any code of cordwood: steps, other entries, disk blocks.

The steps are read with safetensors, by the Hugging Face index beside the index of cordwood.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HUGGING_FACE_NAME = "model.safetensors.index.json"

_INDEX = "cordwood.json"
_LOCK = ".steps.cordwood-lock"  # a process killed while it holds this lock leaves the file
_STEP_LOCK = f".{_INDEX}.cordwood-lock"  # likewise for each step


def whole_steps(root: str | os.PathLike[str]) -> list[int]:
    """Return the steps that have an index, increasing."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return sorted(
        int(name)
        for name in names
        if name.isdigit() and os.path.exists(os.path.join(root, name, _INDEX))
    )


def strangers(root: str | os.PathLike[str]) -> list[str]:
    """Return the entries of a root that are neither a complete step nor its lock file.

    A save that is killed before its first file leaves an empty directory. It may be anybody's, so
    no save removes it, and it is not among these.
    """
    names = os.listdir(root) if os.path.isdir(root) else []
    others = sorted({*names} - {*map(str, whole_steps(root))} - {_LOCK})
    return [name for name in others if not _is_empty_directory(os.path.join(root, name))]


def _is_empty_directory(path: str) -> bool:
    try:
        return not os.listdir(path)
    except (NotADirectoryError, FileNotFoundError):
        return False


def inside(step: Path) -> list[str]:
    """Return the files in a step that its index does not name, except its indexes and lock."""
    text = (step / _INDEX).read_text()
    return [
        name
        for name in os.listdir(step)
        if name not in (_INDEX, HUGGING_FACE_NAME, _STEP_LOCK) and f'"{name}"' not in text
    ]


def read_tensors(step: Path) -> dict[str, Any]:
    """Return the arrays of a step by name."""
    from safetensors.numpy import load_file

    files = json.loads((step / HUGGING_FACE_NAME).read_text())["weight_map"]
    arrays: dict[str, Any] = {}
    for file in sorted(set(files.values())):
        tensors = load_file(step / file)
        arrays.update({name: tensors[name] for name in tensors if files.get(name) == file})
    assert arrays.keys() == files.keys()
    return dict(sorted(arrays.items()))


def blocks_bytes(root: str | os.PathLike[str]) -> int:
    """Return the disk space of a root; a file with several names counts once."""
    return 512 * sum(dict(_blocks(root)).values())


def _blocks(root: str | os.PathLike[str]) -> Iterator[tuple[int, int]]:
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                status = os.lstat(path)
            except FileNotFoundError:  # it has just been removed
                continue
            yield status.st_ino, status.st_blocks
