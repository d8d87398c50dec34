"""The types that a type checker infers; mypy reads this file, and pytest runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, assert_type

import numpy as np

import cordwood


class State(NamedTuple):
    """A user's own type."""

    params: dict[str, np.ndarray[Any, Any]]
    step: int


def test_what_load_returns_is_of_the_type_of_like(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    state = State({"w": np.ones(3)}, 7)
    assert_type(cordwood.save(path, state), None)
    loaded = assert_type(cordwood.load(path, like=state), State)
    assert loaded.step == 7
    part = assert_type(cordwood.load(path, state, select="params", missing="keep"), State)
    assert part.params["w"].shape == (3,)
    assert_type(cordwood.load(path), Any)


def test_what_the_other_verbs_return(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    events: list[cordwood.results.Progress] = []
    pending = assert_type(cordwood.save_async(path, {"w": np.ones(3)}), cordwood.PendingSave)
    pending.wait()
    with assert_type(cordwood.open(path), cordwood.Checkpoint) as checkpoint:
        leaf = assert_type(checkpoint["w"], cordwood.StoredLeaf)
        assert assert_type(leaf.shape, tuple[int, ...]) == (3,)
        assert assert_type(leaf.dtype, str) == "float64"
    done = assert_type(cordwood.verify(path, progress=events.append), cordwood.results.Verification)
    assert assert_type(done.verified_bytes, int) == path.stat().st_size
    difference = assert_type(cordwood.diff(path, {"w": np.ones(3)}), cordwood.results.Diff)
    assert assert_type(difference.equal, bool)
    made = assert_type(cordwood.convert(path, tmp_path / "b.msgpack"), cordwood.results.Conversion)
    assert assert_type(made.lost, tuple[str, ...]) == ()
    assert events[-1].done_bytes == events[-1].total_bytes


def test_what_a_manager_restores(tmp_path: Path) -> None:
    state = State({"w": np.ones(3)}, 7)
    with cordwood.CheckpointManager(tmp_path) as manager:
        manager.save(1, state)
        restored = assert_type(manager.restore(like=state), cordwood.results.Restored[State] | None)
        assert restored is not None
        one = assert_type(manager.restore(1, like=state), cordwood.results.Restored[State])
        required = assert_type(
            manager.restore(like=state, required=True), cordwood.results.Restored[State]
        )
        assert required.tree.step == one.tree.step == 7
        assert_type(manager.restore(required=True), cordwood.results.Restored[Any])
        assert_type(manager.restore(1, like=state, prefix=None, items={}).tree, State)
        assert_type(manager.restore(required=False), cordwood.results.Restored[Any] | None)
        assert_type(manager.restore(), cordwood.results.Restored[Any] | None)
