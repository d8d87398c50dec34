"""Deletion stays in its directory, whatever others put in place of what is deleted meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import cordwood
from cordwood.formats.packs.packs_storage import RULES
from cordwood.storage import syscalls
from cordwood.storage.directories import remove_tree
from cordwood.storage.local_step_storage import LocalStepStorage
from cordwood.storage.locations import LocalPath
from cordwood.storage.staging.staging_directory import StagingDirectory
from tests.children import run_python

TREE = {"a": {"b": np.arange(6.0)}, "c": np.ones(3)}


class Swapping(syscalls.SystemCalls):
    """Puts a symbolic link in place of a directory at the first removal of a file.

    By then the directory above has been listed, and what was listed has not been opened.
    """

    def __init__(self, find: Callable[[], Path | None], target: Path) -> None:
        self._find = find
        self._target = target
        self.swapped: Path | None = None

    def unlink(self, path: str, folder: int | None = None) -> None:
        result = None if self.swapped else self._find()
        if result is not None:
            self.swapped = result
            result.rename(result.with_name("aside"))
            result.symlink_to(self._target)
        super().unlink(path, folder)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Return a directory with files outside the run."""
    folder = tmp_path / "private"
    for name in ("b/c/0", "thesis", "c/0", "zarr.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def fill(folder: Path) -> None:
    (folder / "sub").mkdir(parents=True)
    for name in ("0", "1", "sub/0"):
        (folder / name).write_bytes(b"1")


def fill_with_data(folder: Path) -> None:
    """Fill a directory with names that cordwood makes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cordwood.json", "data-0000000000000000-0-0.safetensors"):
        (folder / name).write_bytes(b"1")


def deleted_tree(root: Path) -> tuple[Path, Callable[[], object]]:
    fill(root / "tree")
    return root / "tree/sub", lambda: remove_tree(str(root / "tree"))


def stage_of_a_killed_save(root: Path) -> tuple[Path, Callable[[], object]]:
    leftover = root / f".1.cordwood-{'0' * 16}.stage"
    fill(leftover)
    return leftover / "sub", lambda: cordwood.save(root / "1", TREE, format="zarr")


def stage_found_by_gc(root: Path) -> tuple[Path, Callable[[], object]]:
    (root / "1").mkdir()
    leftover = root / f".1.cordwood-{'0' * 16}.stage"
    fill(leftover)
    return leftover / "sub", lambda: cordwood.gc(root / "1")


def stage_of_a_save_that_fails(root: Path) -> tuple[Path, Callable[[], object]]:
    def fail() -> None:
        stage = StagingDirectory(root / "1")
        with stage.abandon_on_error():
            stage.begin()
            stage.make_directories(["sub"])
            for name in ("0", "sub/0"):
                stage.create_file(name, [b"1"])
            raise ZeroDivisionError

    def attempt() -> None:
        with pytest.raises(ZeroDivisionError):
            fail()

    return root / ".1.*.stage/sub", attempt


def directory_that_a_save_replaces(root: Path) -> tuple[Path, Callable[[], object]]:
    cordwood.save(root / "1", TREE, format="zarr")
    (root / "1/0").touch()  # goes first
    return root / ".1.*.stage/c", lambda: cordwood.save(root / "1", TREE, format="zarr")


def directory_renamed_away(root: Path) -> tuple[Path, Callable[[], object]]:
    cordwood.save(root / "1", TREE, format="zarr")
    fill(root / ".1.cordwood-old")
    return root / ".1.cordwood-old/sub", lambda: cordwood.save(root / "1", TREE, format="zarr")


KINDS = [
    deleted_tree,
    stage_of_a_killed_save,
    stage_found_by_gc,
    stage_of_a_save_that_fails,
    directory_that_a_save_replaces,
    directory_renamed_away,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_deletion_follows_a_link_that_is_swapped_in(
    tmp_path: Path, private: Path, kind: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    root = tmp_path / "run"
    root.mkdir()
    before = files_in(private)
    pattern, work = kind(root)

    def find() -> Path | None:
        return next(iter(root.glob(str(pattern.relative_to(root)))), None)

    swapping = Swapping(find, private)
    with syscalls.override(swapping):
        work()
    assert swapping.swapped is not None
    assert files_in(private) == before


def test_files_of_a_checkpoint_are_removed_from_the_directory_that_was_listed(
    tmp_path: Path,
) -> None:
    """Somebody swaps the whole directory of a step for a link to another checkpoint."""
    path, other = tmp_path / "run/1", tmp_path / "other"
    cordwood.save(other, TREE)
    (data,) = [name for name in os.listdir(other) if name.startswith("data-")]
    path.mkdir(parents=True)
    for name in ("data-0000000000000000-0-0.safetensors", data):
        (path / name).touch()
    swapping = Swapping(lambda: path, other)
    with syscalls.override(swapping):
        cordwood.gc(path)
    assert swapping.swapped == path
    assert data in os.listdir(other)
    cordwood.load(other)


@pytest.mark.parametrize("kind", ["deleted", "damaged"])
def test_leftovers_are_removed_from_the_directory_that_was_listed(
    tmp_path: Path, private: Path, kind: str
) -> None:
    """Somebody swaps a step that was being deleted for a link to other files of the same names."""
    root = tmp_path / "run"
    hidden = root / f".1.cordwood-{'0' * 16}.{kind}"
    fill_with_data(hidden)
    fill_with_data(private)
    fill_with_data(root / "1")
    before = files_in(private)
    swapping = Swapping(lambda: hidden, private)
    with syscalls.override(swapping):
        LocalStepStorage(LocalPath(str(root)), RULES).remove_leftovers()
    assert swapping.swapped == hidden
    assert files_in(private) == before
    assert files_in(root / "aside") == []


def test_the_index_for_others_is_removed_from_the_directory_that_is_saved(tmp_path: Path) -> None:
    """Somebody swaps the directory for a link to another checkpoint during a save."""
    path, other = tmp_path / "run/1", tmp_path / "other"
    for each in (path, other):
        cordwood.save(each, TREE)
    before = files_in(other)
    swapping = Swapping(lambda: path, other)
    with syscalls.override(swapping):
        cordwood.save(path, TREE, prefix="ema")  # of two trees there is no index for others
    assert swapping.swapped == path
    assert files_in(other) == before


def test_a_link_in_place_of_what_is_deleted_is_all_that_goes(tmp_path: Path, private: Path) -> None:
    before = files_in(private)
    fill(tmp_path / "tree")
    (tmp_path / "tree/linked").symlink_to(private)
    (tmp_path / "link").symlink_to(private)
    remove_tree(str(tmp_path / "link"))
    remove_tree(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()
    assert files_in(private) == before


def test_a_very_deep_directory_takes_no_descriptor_for_each_level(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        from cordwood.storage.directories import remove_tree
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        deep = sys.argv[1] + "/deep"
        os.makedirs(deep + "/d" * 500)
        remove_tree(deep)
        print(os.path.exists(deep))
    """
    assert run_python(code, str(tmp_path)) == "False\n"


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_the_next_save_sweeps_the_stage_of_a_first_one_that_was_killed(
    tmp_path: Path, layout: Literal["packs", "zarr"]
) -> None:
    fill(tmp_path / f".1.cordwood-{'0' * 16}.stage")
    cordwood.save(tmp_path / "1", TREE, format=layout)
    assert os.listdir(tmp_path) == ["1"]


NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """Yield a directory in which all users may write, outside pytest's, which is private."""
    with tempfile.TemporaryDirectory() as folder:
        above = Path(folder)
        above.chmod(0o755)
        if not all(each.stat().st_mode & 0o001 for each in above.parents):
            pytest.skip("other users cannot reach the directory of temporary files")
        root = above / "run"
        root.mkdir()
        root.chmod(0o777)
        os.chown(root, 1234, 1234)  # neither of the two users below
        yield root


def leave(root: Path, ending: str, owner: int) -> Path:
    leftover = root / f".1.cordwood-{owner:016x}.{ending}"
    (fill if ending == "stage" else fill_with_data)(leftover)
    for each in (leftover, *leftover.rglob("*")):
        os.chown(each, owner, owner)
        each.chmod(0o777)
    return leftover


_AS_NOBODY = """
    import os, sys
    import numpy as np
    import cordwood
    from cordwood.formats.packs.packs_storage import RULES
    from cordwood.storage.locations import LocalPath
    from cordwood.storage.local_step_storage import LocalStepStorage

    def work(root):
        LocalStepStorage(LocalPath(root), RULES).remove_leftovers()
        cordwood.save(root + "/1", {"w": np.ones(3)}, format="zarr")
        return cordwood.gc(root + "/1")

    work(sys.argv[2])  # imports all: another user may not reach the modules
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    print(work(sys.argv[1]))
"""


@needs_root
@pytest.mark.parametrize("ending", ["stage", "deleted"])
def test_leftovers_of_another_user_stay(shared_root: Path, ending: str) -> None:
    mine, his = leave(shared_root, ending, NOBODY), leave(shared_root, ending, 4321)
    assert run_python(_AS_NOBODY, str(shared_root), str(shared_root.parent / "rehearsal")) == "[]\n"
    assert not mine.exists()
    assert len(files_in(his)) == (3 if ending == "stage" else 2)


@needs_root
@pytest.mark.parametrize("ending", ["stage", "deleted"])
def test_leftovers_of_the_owner_of_the_root_go(shared_root: Path, ending: str) -> None:
    """Some file systems give every file the same owner, whoever makes it."""
    leftover = leave(shared_root, ending, 1234)
    assert run_python(_AS_NOBODY, str(shared_root), str(shared_root.parent / "rehearsal")) == "[]\n"
    assert not leftover.exists()


@needs_root
def test_the_superuser_sweeps_the_leftovers_of_all(shared_root: Path) -> None:
    leftover = [leave(shared_root, ending, NOBODY) for ending in ("stage", "deleted")]
    LocalStepStorage(LocalPath(str(shared_root)), RULES).remove_leftovers()
    assert cordwood.gc(shared_root / "1") == [str(leftover[0])]
    assert files_in(shared_root) == []
