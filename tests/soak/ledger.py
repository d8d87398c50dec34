"""The steps that a root must contain according to its workers' journals, and their checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cordwood import load, verify
from cordwood.testing import assert_trees_equal
from tests.soak.journal import Line
from tests.soak.loop import KEEP_EVERY, KEEP_LAST, REWRITE_EVERY
from tests.soak.roots import (
    HUGGING_FACE_NAME,
    blocks_bytes,
    inside,
    read_tensors,
    strangers,
    whole_steps,
)
from tests.soak.training import State, loss_of, state_at

PLACES = ("starting", "before the commit", "committed, not reported", "deleting", "between saves")

_SLACK_BYTES = 64 << 10  # directories and lock files
_SMALL_BYTES = 32 << 10  # the indexes of a step, its directory and the ends of its files


def kept_of(newest: int) -> set[int]:
    """Return the steps that the policy keeps of the steps 1 to `newest`."""
    last = range(max(1, newest - KEEP_LAST + 1), newest + 1)
    return {*last, *range(KEEP_EVERY, newest + 1, KEEP_EVERY)}


def _by_name(tree: State, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of a tree, by their names in the files."""
    arrays = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            arrays.update(_by_name(value, f"{prefix}{name}."))
        elif isinstance(value, np.ndarray):
            arrays[prefix + name] = value
    return arrays


def _on_disk(array: np.ndarray) -> int:
    return -(-array.nbytes // 4096) * 4096


class Ledger:
    """The expected steps of one root, from its first save on.

    Attributes:
        newest: the newest complete step.
        kinds: one, plus how many times the run continued with another kind of array.
        commits: how many times a journal recorded a commit.
        most_left: the largest number of entries that were no step, right after a kill.
        most_bytes, bound_bytes, unlinked_bytes: the largest size of the root on disk, the bound at
            that time, and the size without hard links.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest = 0
        self.commits = 0
        self.kinds = 1
        self.most_left = 0
        self.most_bytes = self.bound_bytes = self.unlinked_bytes = 0
        self._settled = 0  # the last step after which everything was cleaned up
        sizes = {name: _on_disk(array) for name, array in _by_name(state_at(0)).items()}
        self._step_bytes = sum(sizes.values()) + _SMALL_BYTES
        self._frozen_bytes = sum(sizes[name] for name in sizes if name.startswith("base."))
        self._checked: dict[int, int] = {}

    def check(self, journals: Sequence[Sequence[Line]]) -> str:
        """Compare the journals of one life of the processes with the root; return where they died.

        Raises AssertionError.
        """
        before = begun = self.newest
        present = whole_steps(self.root)
        self.newest = max(present, default=0)
        for process, lines in enumerate(journals):
            self._require_true(lines, process, len(journals))
            for line in lines:
                if line.what == "restored":
                    assert line.step == before, f"resumed from {line.step}, not from {before}"
                elif line.what == "begun":
                    begun = line.step
                elif line.what == "settled" and process == 0:
                    self._settled = line.step
                self.commits += line.what == "committed" and process == 0
        assert self.newest in range(before, begun + 1)
        must = kept_of(self.newest)
        assert must <= set(present), f"lost: {must - set(present)}"
        may = kept_of(self._settled) | set(range(self._settled + 1, self.newest + 1))
        assert set(present) <= must | may, f"not deleted: {set(present) - must - may}"
        for step in present:
            self._require_right(step)
        self._measure(len(present))
        return self._where(journals[0], begun)

    def _require_true(self, lines: Sequence[Line], process: int, count: int) -> None:
        """Require that the journal of one process is true."""
        for what, step, detail in lines:
            if what == "loss":
                rows = np.array_split(state_at(step)["weights"], count)[process]
                assert detail == loss_of(rows).hex(), f"step {step}: a different loss"
            elif what == "committed":
                assert step <= self.newest, f"lost: {step}, which was reported as committed"
            elif what == "settled":
                assert process > 0 or detail == "0", f"{detail} strangers beside step {step}"
            else:
                assert what in ("restored", "begun"), f"{what}: {detail}"

    def _require_right(self, step: int) -> None:
        """Require the right value of each array, read by safetensors and by cordwood."""
        path = self.root / str(step)
        stamp = os.stat(path / "cordwood.json").st_ino
        if self._checked.get(step) == stamp and step < self.newest - KEEP_LAST:
            return
        expected = state_at(step)
        assert verify(path).unverified_bytes == 0
        assert_trees_equal(load(path, to="numpy"), expected)
        if (
            path / HUGGING_FACE_NAME
        ).exists():  # missing if leaves are cut, or if a kill came first
            assert_trees_equal(read_tensors(path), _by_name(expected))
        if step <= self._settled:
            extra = inside(path)
            assert not extra, f"step {step} contains {extra}, which its index does not name"
        self._checked[step] = stamp

    def _measure(self, present: int) -> None:
        count = len(strangers(self.root))
        self.most_left = max(self.most_left, count)
        taken = blocks_bytes(self.root)
        bound = self.bound(present) + count * self._step_bytes
        assert taken <= bound, f"{present} steps and {count} strangers take {taken} bytes"
        if taken >= self.most_bytes:
            self.most_bytes, self.bound_bytes = taken, bound
            self.unlinked_bytes = present * (self._step_bytes - _SMALL_BYTES)

    def bound(self, steps: int) -> int:
        """Return the maximum size of this many steps on disk.

        Frozen arrays are written once in REWRITE_EVERY steps, and when they come as another kind of
        array.
        """
        changed = steps * (self._step_bytes - self._frozen_bytes)
        written = self.newest // REWRITE_EVERY + self.kinds + 1
        return changed + written * self._step_bytes + _SLACK_BYTES

    def _where(self, lines: Sequence[Line], begun: int) -> str:
        """Return the place in PLACES where a life ended; `lines` is the journal of process 0."""
        if not any(line.what == "restored" for line in lines):
            return "starting"
        if begun > self.newest:
            return "before the commit"
        committed = max((line.step for line in lines if line.what == "committed"), default=0)
        if lines[-1].what != "restored" and committed < self.newest:
            return "committed, not reported"
        if set(whole_steps(self.root)) != kept_of(self.newest) or strangers(self.root):
            return "deleting"
        return "between saves"
