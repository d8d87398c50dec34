"""Steps for tests whose files lie in several roots."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cordwood
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_checkpoint
from cordwood.storage.locations import HeldStep, Holder, LocalPath
from cordwood.storage.peers.peer_server import PeerServer
from cordwood.storage.peers.peer_step import PeerLimits, PeerStep

RULES = storage_of(DEFAULT).RULES
INDEX = RULES.index_name
TOKEN = "token-of-the-job"
ENTRY = "100"
IMPATIENT = PeerLimits(
    connect_seconds=5, stall_seconds=0.2, bytes_per_second=1 << 30, busy_seconds=0.5
)


def tree_of(item: int, elements: int = 300_000) -> dict[str, Any]:
    values = np.random.default_rng(item).integers(0, 1 << 30, elements, np.int32)
    return {"w": values, "step": item}


class SavedStep(NamedTuple):
    """A step whose trees "0", "1", ... lie in a file each."""

    folder: Path
    index_bytes: bytes
    files: Sequence[str]  # of the trees, in order

    def copy_to(self, root: Path, files: Iterable[int]) -> LocalPath:
        """Return the step in another root, which has the index and some of the files."""
        step = root / ENTRY
        step.mkdir(parents=True)
        (step / INDEX).write_bytes(self.index_bytes)
        for number in files:
            os.link(self.folder / self.files[number], step / self.files[number])
        return LocalPath(str(step))


def save_step(root: Path, items: int = 3, elements: int = 300_000) -> SavedStep:
    step, files = root / ENTRY, list[str]()
    for item in range(items):
        cordwood.save(step, tree_of(item, elements), prefix=str(item))
        files += sorted({each.name for each in step.glob("data-*")} - set(files))
    return SavedStep(step, (step / INDEX).read_bytes(), files)


def serve(root: Path, **options: Any) -> PeerServer:
    return PeerServer(LocalPath(str(root)), RULES, TOKEN, **options)


def peer(address: str, name: str = "process 1", **fields: Any) -> PeerStep:
    return PeerStep(address, fields.pop("token", TOKEN), ENTRY, name, **fields)


def held(
    step: SavedStep,
    places: Mapping[int, Sequence[Holder]],
    on_problem: Callable[[str, Exception], None] | None = None,
    path: str = "nowhere/100",
) -> LocalPath:
    by_name = {step.files[number]: each for number, each in places.items()}
    return LocalPath(path, HeldStep(step.index_bytes, by_name, on_problem))


def load(location: LocalPath, item: int, **options: Any) -> Any:
    return load_checkpoint(location, None, LoadOptions(**options), prefix=str(item))
