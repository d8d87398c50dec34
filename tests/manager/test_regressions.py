"""B38 to B40, and the failed saves of Orbax's manager and eFormer's: cordwood's has none of it.

Each test first shows the defect in the peer, so that it is known when one of them is mended.
"""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from eformer.serialization import AsyncCheckpointManager, Checkpointer, base_manager

from cordwood import CheckpointManager, EverySeconds, verify
from cordwood.errors import PendingSaveError
from cordwood.results import SaveReport

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

they_fail = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("x",))


@pytest.fixture
def tree(mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    sharding = jax.sharding.NamedSharding(mesh, jax.P("x"))
    return {"w": jax.device_put(jnp.arange(16.0), sharding)}


def trained(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return the tree after a training step: an unchanged tree would be linked, without space."""
    return {name: array + 1 for name, array in tree.items()}


@contextmanager
def full_disk() -> Iterator[None]:
    with patch("cordwood.storage.local_transaction.fill_file", side_effect=FULL):
        yield


@contextmanager
def full_disk_for_orbax() -> Iterator[None]:
    """In the background: what a save has begun to write ends with an error."""
    original = ocp.StandardCheckpointHandler.async_save

    async def async_save(self: Any, *arguments: Any, **named: Any) -> Any:
        begun = await original(self, *arguments, **named)
        failed: Future[None] = Future()
        failed.set_exception(FULL)
        return [*(begun or []), failed]

    with patch.object(ocp.StandardCheckpointHandler, "async_save", async_save):
        yield


def eformers(
    root: Path, now: Callable[[], datetime.datetime], save_interval: datetime.timedelta
) -> Checkpointer:
    manager = AsyncCheckpointManager(use_tensorstore=True)
    return Checkpointer(str(root), save_interval, [], manager=manager, dt_now_injection=now)


@they_fail
def test_a_failed_background_save_is_no_step(tmp_path: Path, tree: dict[str, jax.Array]) -> None:
    """Orbax's manager calls it the latest; then it forgets the good one, and never deletes it."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
    with ocp.CheckpointManager(tmp_path / "theirs", options=options) as theirs:
        theirs.save(1, args=ocp.args.StandardSave(tree))
        theirs.wait_until_finished()
        assert theirs.latest_step() == 1
        with full_disk_for_orbax():
            theirs.save(2, args=ocp.args.StandardSave(tree))
            assert theirs.latest_step() == 2
            with pytest.raises(OSError, match="No space left"):
                theirs.wait_until_finished()
        assert theirs.latest_step() is None
        assert (tmp_path / "theirs" / "1").is_dir()
        theirs.save(3, args=ocp.args.StandardSave(tree))
        theirs.wait_until_finished()
        assert theirs.all_steps() == [3]
        assert sorted(os.listdir(tmp_path / "theirs"))[0] == "1"

    manager = CheckpointManager(tmp_path / "ours", keep=1)
    manager.save(1, tree)
    manager.wait()
    with full_disk():
        pending = manager.save(2, trained(tree))
        assert manager.latest() == 1
        with pytest.raises(OSError, match="No space left"):
            manager.wait()
        assert pending is not None
        assert pending.failed
    assert (manager.latest(), manager.steps()) == (1, [1])
    assert verify(tmp_path / "ours" / "1").unverified_bytes == 0
    manager.save(3, tree)
    manager.wait()
    assert sorted(os.listdir(tmp_path / "ours")) == ["3"]


@they_fail
def test_a_failed_save_deletes_no_good_step(
    tmp_path: Path, mesh: jax.sharding.Mesh, tree: dict[str, jax.Array]
) -> None:
    """The Checkpointer of eFormer deletes the last good step even if the new save failed."""
    current = datetime.datetime(2026, 1, 1)
    theirs = eformers(tmp_path / "theirs", lambda: current, datetime.timedelta(seconds=10))
    theirs.on_step(mesh, step=0)
    current += datetime.timedelta(seconds=11)

    def save(name: str, mesh: jax.sharding.Mesh, metadata: dict[str, Any]) -> None:
        theirs._manager.save_tree(
            tree, path=str(tmp_path / "theirs" / name), mesh=mesh, prefix="model"
        )

    def fail_in_the_background(name: str, *_: Any) -> None:
        (tmp_path / "theirs" / name).mkdir()  # and no more

    theirs.on_step(mesh, step=1, true_callbacks=[save])
    assert (tmp_path / "theirs" / "run-1" / "tensorstore_index.json").exists()
    theirs.on_step(mesh, step=2, true_callbacks=[fail_in_the_background])
    theirs.wait_until_finished()
    assert os.listdir(tmp_path / "theirs") == ["run-2"]
    assert os.listdir(tmp_path / "theirs" / "run-2") == ["metadata.json"]

    manager = CheckpointManager(tmp_path / "ours", keep=1)
    manager.save(1, tree)
    manager.wait()
    with full_disk():
        manager.save(2, trained(tree))
        with pytest.raises(PendingSaveError, match="the save of step 2 in the background failed"):
            manager.save(3, tree)
    assert sorted(os.listdir(tmp_path / "ours")) == ["1"]
    assert verify(tmp_path / "ours" / "1").unverified_bytes == 0


@they_fail
def test_the_default_path_works(
    tmp_path: Path, mesh: jax.sharding.Mesh, tree: dict[str, jax.Array]
) -> None:
    """B38: a tree given to `on_step` is written, and then the save fails."""
    current = datetime.datetime(2026, 1, 1)
    theirs = eformers(tmp_path / "theirs", lambda: current, datetime.timedelta(seconds=10))
    with pytest.raises(TypeError, match="takes 0 positional arguments but 1 was given"):
        theirs.on_step(mesh, tree, step=5, force=True)
    assert (tmp_path / "theirs" / "run-5" / "tensorstore_index.json").exists()
    assert not (tmp_path / "theirs" / "run-5" / "metadata.json").exists()

    messages: list[SaveReport] = []
    with CheckpointManager(tmp_path / "ours", on_save=messages.append) as manager:
        manager.save(5, tree)
    assert [report.step for report in messages] == [5]
    assert manager.latest() == 5


def test_an_interval_begins_anew_with_each_save(
    tmp_path: Path, mesh: jax.sharding.Mesh, tree: dict[str, jax.Array]
) -> None:
    """B39: once the first interval is over, every step is saved."""
    seconds = 0.0

    def now() -> datetime.datetime:
        return datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=seconds)

    theirs = eformers(tmp_path / "theirs", now, datetime.timedelta(seconds=10))
    saved: list[str] = []

    def save(name: str, *_: Any) -> None:
        saved.append(name)
        (tmp_path / "theirs" / name).mkdir(parents=True)

    with patch("time.monotonic", lambda: seconds):
        policy = EverySeconds(10)
        ours = CheckpointManager(tmp_path / "ours", save=policy, background=False)
        theirs.on_step(mesh, step=0)
        for step in range(1, 30):
            seconds += 1
            theirs.on_step(mesh, step=step, true_callbacks=[save])
            ours.save(step, tree)
    theirs.wait_until_finished()
    assert saved == [f"run-{step}" for step in range(10, 30)]
    assert ours.steps() == [10, 20]


def test_a_step_needs_no_more_than_a_tree(
    tmp_path: Path, mesh: jax.sharding.Mesh, tree: dict[str, jax.Array]
) -> None:
    """B40: `save_checkpoint` leaves out an argument of a function that it calls."""
    with pytest.raises(TypeError, match="cpu_offload"):
        base_manager.CheckpointManager.save_checkpoint(tree, str(tmp_path / "theirs"), mesh)
    with CheckpointManager(tmp_path / "ours") as manager:
        manager.save(1, tree)
    restored = manager.restore(like=tree)
    assert restored is not None
    assert restored.tree["w"].tolist() == tree["w"].tolist()
    assert restored.tree["w"].sharding == tree["w"].sharding
