"""A process that saves one step after another until it is killed.

`python -m tests.soak.endless_saves PATH KIND FIRST` prints `begun N` before the save of step N, and
`saved N` when the save has returned.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Any

import numpy as np

from cordwood import CheckpointManager, KeepLast, save
from tests.soak.training import state_at

KEEP = 3  # steps of a run
FILES = {"file": "state.safetensors", "msgpack": "state.msgpack"}  # other kinds: a directory


def state_of(step: int) -> dict[str, Any]:
    """Return the state of a step: small leaves, frozen ones, and one of 2 MiB."""
    state = {**state_at(step), "large": np.full((2, 1 << 18), step, np.uint32)}
    return {**state, "step": np.int64(step)}


class Saver:
    """Saves of states as one kind of checkpoint."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._manager: CheckpointManager | None = None

    def save(self, path: str | os.PathLike[str], step: int) -> None:
        """Save a step; it is durable on return."""
        if self._kind == "run":
            self._manager = self._manager or CheckpointManager(path, keep=KeepLast(KEEP))
            self._manager.save(step, state_of(step))
            self._manager.wait()
        elif self._kind == "zarr":
            save(path, state_of(step), format="zarr")
        else:
            save(path, state_of(step))


def main(path: str, kind: str, first: int) -> None:
    """Save one step after another."""
    saver = Saver(kind)
    for step in count(first):
        print(f"begun {step}", flush=True)
        saver.save(path, step)
        print(f"saved {step}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
