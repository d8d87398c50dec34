"""The conformance suite of storages: what holds wherever a directory is saved.

A storage is a `Storage`; each check takes one and uses public names only:

    @pytest.mark.parametrize("check", checks_of(has_files=True))
    def test_my_storage(check: Check) -> None:
        check(Storage(...))
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import (
    IncompleteCheckpointError,
    NotACheckpointError,
    PrefixError,
    StepError,
    UnsupportedLeafError,
)
from cordwood.testing import assert_trees_equal
from tests.shardings import mesh_of
from tests.threads import in_threads

__all__ = ["Check", "FolderFiles", "Storage", "checks_of"]

SAVES = 12


class Storage(NamedTuple):
    """A place where directories are saved, and what lies there."""

    place: str | Path  # a path or a URL; nothing is there yet
    # The files or objects below the place, by their names relative to it; None: a test has no
    # access to them.
    files: MutableMapping[str, bytes] | None = None
    options: Mapping[str, Any] = {}  # of each save
    collects_at_once: bool = True  # False: `gc` takes only what is a day old for dead
    empty_is_none: bool = False  # True: an index or a map without bytes counts as removed


class FolderFiles(MutableMapping[str, bytes]):
    """The files below a folder, by their relative paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def __delitem__(self, name: str) -> None:
        (self.folder / name).unlink()

    def __iter__(self) -> Iterator[str]:
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return iter([str(path.relative_to(self.folder)) for path in paths])

    def __len__(self) -> int:
        return len(list(iter(self)))


Check: TypeAlias = Callable[[Storage], None]


def checks_of(*, has_files: bool, has_runs: bool = True) -> Sequence[Check]:
    """Return the checks of a storage.

    Args:
        has_files: whether a test has access to its files.
        has_runs: whether a CheckpointManager saves as this storage does.
    """
    return [*CALLS, *(FILES if has_files else ()), *(RUNS if has_runs else ())]


def save(storage: Storage, tree: Any, **options: Any) -> None:
    cordwood.save(storage.place, tree, **{**storage.options, **options})


def assert_holds(storage: Storage, tree: Any) -> None:
    assert_trees_equal(cordwood.load(storage.place, like=tree), tree)
    assert cordwood.verify(storage.place).leaves == len(jax.tree.leaves(tree))
    assert cordwood.gc(storage.place) == []


def spread_tree() -> dict[str, Any]:
    """Return a tree of arrays on eight devices, numpy arrays and Python values."""

    def spread(shape: tuple[int, ...], *axes: str | None) -> jax.Array:
        values = np.random.default_rng(0).random(shape, np.float32)
        return jax.device_put(values, NamedSharding(mesh_of(4, 2), P(*axes)))

    return {
        "layers": [{"w": spread((16, 24), "x", "y"), "b": spread((24,), "y")} for _ in range(3)],
        "whole": spread((40, 10)),
        "numpy": np.arange(7, dtype=np.int16),
        "step": 12,
        "name": "é",
        "nothing": None,
    }


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.full(3000, step), "parts": [np.full(5, step) for _ in range(4)]}


# What the calls do


def a_tree_comes_back(storage: Storage) -> None:
    tree = spread_tree()
    save(storage, tree, metadata={"run": "7"})
    assert_holds(storage, tree)
    with cordwood.open(storage.place) as checkpoint:
        assert checkpoint.metadata == {"run": "7"}
        rows = checkpoint["layers/1/w"][3:5, 20:]
    np.testing.assert_array_equal(rows, np.asarray(tree["layers"][1]["w"])[3:5, 20:])
    assert cordwood.diff(storage.place, tree).equal
    part = cordwood.load(storage.place, select="layers/1", to="numpy")
    assert len(jax.tree.leaves(part)) == 2


def an_array_is_resharded(storage: Storage) -> None:
    elements = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    w = jax.device_put(elements, NamedSharding(mesh_of(4, 2), P("x", "y")))
    save(storage, {"w": w})
    for spec, sizes in ((P(None, "x"), (8,)), (P("y"), (2, 2)), (P(), (1,))):
        like = {"w": jax.device_put(elements, NamedSharding(mesh_of(*sizes), spec))}
        assert_trees_equal(cordwood.load(storage.place, like=like), like)


def a_save_replaces_the_one_before(storage: Storage) -> None:
    for step in range(3):
        save(storage, tree_of(step))
        assert_holds(storage, tree_of(step))
    save(storage, {"other": np.ones(3)})
    assert_holds(storage, {"other": np.ones(3)})


def a_save_that_fails_changes_nothing(storage: Storage) -> None:
    def fail() -> None:
        with pytest.raises(UnsupportedLeafError, match="odd"):
            save(storage, {"w": np.ones(9), "odd": object()})

    fail()
    with pytest.raises(FileNotFoundError):
        cordwood.load(storage.place)
    save(storage, tree_of(1))
    fail()
    assert_holds(storage, tree_of(1))


def saves_in_the_background(storage: Storage) -> None:
    """They save what was given; the next save waits for the one before."""
    tree = tree_of(1)
    pending = cordwood.save_async(storage.place, tree, **storage.options)
    tree["w"][:] = -1
    pending.wait()
    assert_holds(storage, tree_of(1))
    cordwood.save_async(storage.place, tree_of(2), **storage.options)
    last = cordwood.save_async(storage.place, tree_of(3), **storage.options)
    last.wait()
    assert last.done
    assert_holds(storage, tree_of(3))


def nothing_is_there(storage: Storage) -> None:
    calls: list[Callable[[Any], Any]] = [
        *(cordwood.load, cordwood.open, cordwood.verify, cordwood.detect, cordwood.gc)
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call(storage.place)


def trees_with_prefixes_are_saved_at_once(storage: Storage) -> None:
    """Eight threads save three times each under a prefix of their own."""
    together = threading.Barrier(8)

    def work(number: int) -> None:
        for step in range(3):
            together.wait()
            save(storage, {"w": np.full(50, number * 10 + step)}, prefix=f"p{number}")

    in_threads(work, together=together)
    for number in range(8):
        loaded = cordwood.load(storage.place, prefix=f"p{number}")
        assert_trees_equal(loaded, {"w": np.full(50, number * 10 + 2)})
    with pytest.raises(PrefixError, match="p7"):
        cordwood.load(storage.place, prefix="p8")
    assert cordwood.verify(storage.place).leaves == 8
    assert cordwood.gc(storage.place) == []


def loads_see_whole_trees_while_saves_go_on(storage: Storage) -> None:
    save(storage, tree_of(0))
    ended = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            try:
                for step in range(1, SAVES):
                    save(storage, tree_of(step))
            finally:
                ended.set()
            return
        last = 0
        while not ended.is_set():
            loaded = cordwood.load(storage.place)
            step = int(loaded["w"][0])
            assert_trees_equal(loaded, tree_of(step))
            assert step >= last
            last = step

    in_threads(work, 4)
    cordwood.gc(storage.place)  # of the directories that a load had open when they were replaced
    assert_holds(storage, tree_of(SAVES - 1))


def what_is_open_is_never_another_tree(storage: Storage) -> None:
    """Read the old tree, or raise an error, after a save has replaced an open checkpoint."""
    save(storage, tree_of(1))
    with cordwood.open(storage.place) as checkpoint:
        assert checkpoint.is_current()
        save(storage, tree_of(2))
        assert not checkpoint.is_current()
        try:
            loaded = checkpoint.load()
        except cordwood.CordwoodError:
            return
        assert_trees_equal(loaded, tree_of(1))


CALLS: tuple[Check, ...] = (
    a_tree_comes_back,
    an_array_is_resharded,
    a_save_replaces_the_one_before,
    a_save_that_fails_changes_nothing,
    saves_in_the_background,
    nothing_is_there,
    trees_with_prefixes_are_saved_at_once,
    loads_see_whole_trees_while_saves_go_on,
    what_is_open_is_never_another_tree,
)

# What lies there


def files_of(storage: Storage) -> MutableMapping[str, bytes]:
    assert storage.files is not None
    return storage.files


def saves_leave_no_files_behind(storage: Storage) -> None:
    files = files_of(storage)
    save(storage, tree_of(0))
    count = len(files)
    for step in range(1, 4):
        save(storage, tree_of(step))
        assert len(files) == count
    before = dict(files)
    with pytest.raises(UnsupportedLeafError):
        save(storage, {"w": np.ones(9), "odd": object()})
    assert dict(files) == before


def damage_is_found(storage: Storage) -> None:
    """Find a flipped bit, a file that is too short or too long, and a missing file."""
    files = files_of(storage)
    save(storage, {"a": {"w": np.arange(1000)}})
    for name, data in dict(files).items():
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        # Without the map the checkpoint is whole.
        is_map = storage.empty_is_none and name.endswith("model.safetensors.index.json")
        for damaged in (flipped, data[:middle], *(() if is_map else (b"",))):
            files[name] = damaged
            with pytest.raises(cordwood.CordwoodError, match=name.rpartition("/")[2]):
                cordwood.verify(storage.place)
        files[name] = data
    largest = max(files, key=lambda name: len(files[name]))
    data, end = files[largest], largest.rpartition("/")[2]
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"\0"):
        files[largest] = damaged
        for call in (cordwood.load, cordwood.verify):
            with pytest.raises(cordwood.CordwoodError, match=end):
                call(storage.place)
    del files[largest]
    for call in (cordwood.load, cordwood.verify):
        with pytest.raises(cordwood.CordwoodError, match=end):
            call(storage.place)
    files[largest] = data
    assert_holds(storage, {"a": {"w": np.arange(1000)}})


def what_is_no_checkpoint_is_not_replaced(storage: Storage) -> None:
    files = files_of(storage)
    files["notes.txt"] = b"mine"
    with pytest.raises(IncompleteCheckpointError, match=r"cordwood\.json"):
        cordwood.load(storage.place)
    with pytest.raises(NotACheckpointError, match=r"notes\.txt"):
        save(storage, {"w": 1})
    assert dict(files) == {"notes.txt": b"mine"}


def files_of_others_stay(storage: Storage) -> None:
    files = files_of(storage)
    save(storage, tree_of(1))
    files["notes.txt"] = b"mine"
    save(storage, tree_of(2))
    assert_holds(storage, tree_of(2))
    assert files["notes.txt"] == b"mine"


def files_of_killed_saves_are_collected(storage: Storage) -> None:
    files = files_of(storage)
    save(storage, tree_of(1))
    first = dict(files)
    save(storage, tree_of(2))
    second = dict(files)
    dead = {name: data for name, data in first.items() if name not in second}
    assert dead
    files.update(dead)
    assert_trees_equal(cordwood.load(storage.place), tree_of(2))
    collected = cordwood.gc(storage.place, dry_run=True)
    names = {path.rpartition("/")[2] for path in collected}
    assert names == (dead.keys() if storage.collects_at_once else set())
    assert dict(files) == {**second, **dead}
    assert cordwood.gc(storage.place) == collected
    if storage.collects_at_once:
        assert dict(files) == second
    assert_trees_equal(cordwood.load(storage.place), tree_of(2))


FILES: tuple[Check, ...] = (
    saves_leave_no_files_behind,
    damage_is_found,
    what_is_no_checkpoint_is_not_replaced,
    files_of_others_stay,
    files_of_killed_saves_are_collected,
)

# Runs: directories of steps


def steps_are_saved_and_restored(storage: Storage) -> None:
    with CheckpointManager(storage.place) as manager:
        assert manager.restore() is None
        for step in range(3):
            manager.save(step, tree_of(step), metrics={"loss": 1 / (step + 1)}, extras=[step])
    detected = cordwood.detect(storage.place)
    assert (detected.format, detected.steps) == ("steps", ("0", "1", "2"))
    reader = StepReader(storage.place)
    assert reader.steps() == [0, 1, 2]
    assert reader.latest() == 2
    restored = reader.restore(like=tree_of(0))
    assert restored is not None
    assert (restored.step, restored.metrics["loss"], restored.extras) == (2, 1 / 3, [2])
    assert_trees_equal(restored.tree, tree_of(2))
    restored = reader.restore(1)
    assert restored is not None
    assert_trees_equal(restored.tree, tree_of(1))
    assert_trees_equal(cordwood.load(f"{storage.place}/0"), tree_of(0))


def a_run_goes_on_where_it_ended(storage: Storage) -> None:
    with CheckpointManager(storage.place, save=2) as manager:
        for step in range(3):
            manager.save(step, tree_of(step))
    with CheckpointManager(storage.place, save=2) as manager:
        restored = manager.restore(like=tree_of(0))
        assert restored is not None
        assert restored.step == 2
        for step in range(3, 7):
            manager.save(step, tree_of(step))
        manager.wait()
        assert manager.steps() == [0, 2, 4, 6]
        with pytest.raises(StepError):
            manager.save(4, tree_of(4))


def old_steps_are_deleted(storage: Storage) -> None:
    with CheckpointManager(storage.place, keep=2) as manager:
        for step in range(5):
            manager.save(step, tree_of(step))
        manager.wait()
        assert manager.steps() == [3, 4]
        manager.delete(3)
        assert StepReader(storage.place).steps() == [4]
        with pytest.raises(FileNotFoundError):
            cordwood.load(f"{storage.place}/3")
        manager.save(7, tree_of(7))
        manager.wait()
        assert manager.delete_after(4) == [7]
        manager.save(5, tree_of(5))
    assert StepReader(storage.place).steps() == [4, 5]
    if storage.files is not None:
        names = [name.split("/") for name in storage.files]
        assert {name[0] for name in names} - {".data"} == {"4", "5"}
        pool = {name[1] for name in names if name[0] == ".data"}
        assert len(pool) in (0, 2), "of each step that is left; none where there is no pool"


def a_reader_sees_new_steps_whole(storage: Storage) -> None:
    """Read the newest step in a thread while another saves and deletes old ones."""
    reader = StepReader(storage.place)
    ended = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            try:
                with CheckpointManager(storage.place, keep=2) as manager:
                    for step in range(SAVES):
                        manager.save(step, tree_of(step))
            finally:
                ended.set()
            return
        last = 0
        while not ended.is_set():
            restored = reader.restore()
            if restored is not None:
                assert_trees_equal(restored.tree, tree_of(restored.step))
                assert restored.step >= last
                last = restored.step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a step that is being deleted
        in_threads(work, 2)
    assert reader.steps() == [SAVES - 2, SAVES - 1]


RUNS: tuple[Check, ...] = (
    steps_are_saved_and_restored,
    a_run_goes_on_where_it_ended,
    old_steps_are_deleted,
    a_reader_sees_new_steps_whole,
)
