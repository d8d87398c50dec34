"""Runs in which most of the tree stays what it is, and what they leave on the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.storage.syscalls import SystemCalls

__all__ = ["WrittenBytes", "fine_tuning", "links_of", "occupied_bytes", "train"]

LAYERS = 30


class WrittenBytes(SystemCalls):
    """The real calls; counts the bytes that are written to files."""

    def __init__(self) -> None:
        self.count = 0
        self._counting = threading.Lock()

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        count = super().pwrite(fd, data, offset)
        with self._counting:
            self.count += count
        return count

    def taken(self) -> int:
        """Return the count of bytes since the last call."""
        count, self.count = self.count, 0
        return count


def fine_tuning(scale: int = 1, *, columns: int = 512) -> dict[str, Any]:
    """Return frozen weights with small trained ones between them, and Adam's state of these.

    There are 60 frozen leaves of a little more than `scale` MiB; 4.7 % of their bytes are trained.
    With fewer `columns` the frozen leaves are smaller.
    """
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape, np.float32)

    layers = {}
    for i in range(LAYERS):
        layers[f"layer{i:02}"] = {
            "a_lora": normal(1024 * scale, 4),
            "kernel": normal(512 * scale, columns),
            "norm": normal(512),
            "out": normal(512 * scale, columns),
            "z_lora": normal(4, 1024 * scale),
        }
    trained = [layer[name] for layer in layers.values() for name in ("a_lora", "z_lora")]
    return {
        "adam": {
            "mu": [np.zeros_like(array) for array in trained],
            "nu": [np.zeros_like(array) for array in trained],
        },
        "count": np.zeros((), np.int32),
        "params": layers,
    }


def train(tree: dict[str, Any]) -> int:
    """Change the trained arrays in place; return their number of bytes."""
    changed = [*tree["adam"]["mu"], *tree["adam"]["nu"], tree["count"]]
    for layer in tree["params"].values():
        changed += [layer["a_lora"], layer["z_lora"]]
    for array in changed:
        array += 1
    return sum(array.nbytes for array in changed)


def occupied_bytes(root: Path) -> int:
    """Return the disk space of all files below a directory, each counted once."""
    by_name = {}
    for path in root.rglob("*"):
        status = path.stat()
        by_name[status.st_ino] = status.st_blocks * 512
    return sum(by_name.values())


def links_of(step: Path) -> list[int]:
    """Return the number of names of each data file of a step."""
    return [path.stat().st_nlink for path in sorted(step.glob("data-*"))]
