"""Packs that are missing, short, long, swapped, linked or damaged: load and verify refuse them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError

TREE = {"a": {"w": np.arange(300_000.0), "b": np.arange(7, dtype=np.int8)}, "n": 5}
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a directory of two packs, of one item each."""
    path = tmp_path / "ckpt"
    cordwood.save(path, TREE)
    cordwood.save(path, {"z": np.arange(300_000, 600_000.0), "m": np.ones(7, np.int8)}, prefix="p")
    return path


def packs(path: Path) -> tuple[Path, Path]:
    """Return the pack of TREE, and the other one."""
    with cordwood.open(path) as checkpoint:
        name = checkpoint.index.sources[0].name
    (other,) = [pack for pack in path.glob("data-*") if pack.name != name]
    return path / name, other


def missing(pack: Path, other: Path) -> None:
    pack.unlink()


def empty(pack: Path, other: Path) -> None:
    pack.write_bytes(b"")


def short(pack: Path, other: Path) -> None:
    os.truncate(pack, pack.stat().st_size - 1)


def long(pack: Path, other: Path) -> None:
    with pack.open("ab") as file:
        file.write(b"\0")


def swapped(pack: Path, other: Path) -> None:
    spare = pack.with_name("spare")
    pack.rename(spare)
    other.rename(pack)
    spare.rename(other)


def linked(pack: Path, other: Path) -> None:
    target = pack.parent.parent / "elsewhere"
    pack.rename(target)
    pack.symlink_to(target)


def a_folder(pack: Path, other: Path) -> None:
    pack.unlink()
    pack.mkdir()


def a_pipe(pack: Path, other: Path) -> None:
    pack.unlink()
    os.mkfifo(pack)


def a_sparse_giant(pack: Path, other: Path) -> None:
    os.truncate(pack, 1 << 40)


DAMAGE: dict[Callable[[Path, Path], None], str] = {
    missing: "is missing: the checkpoint is incomplete",
    empty: "expected [0-9]+ bytes, found 0",
    short: "expected [0-9]+ bytes, found [0-9]+",
    long: "expected [0-9]+ bytes, found [0-9]+",
    swapped: "(the header|bytes 0 to 4096).* do not match the digest in the index",
    linked: "is, or lies behind, a symbolic link",
    a_folder: "expected a regular file",
    a_pipe: "expected a regular file",
    a_sparse_giant: "expected [0-9]+ bytes, found 1099511627776",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("pinned_files", [64, 0])
def test_files_that_are_not_what_was_saved(
    path: Path,
    damage: Callable[[Path, Path], None],
    pinned_files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cordwood.storage.local_storage.MAX_OPEN_FILES", pinned_files)
    pack, other = packs(path)
    damage(pack, other)
    with pytest.raises(cordwood.CordwoodError, match=DAMAGE[damage]) as raised:
        cordwood.load(path)
    assert str(pack) in str(raised.value)
    with pytest.raises(CorruptionError, match=DAMAGE[damage]) as raised:
        cordwood.verify(path)
    assert f"  {pack.name} (leaves: a/w, a/b): " in str(raised.value)
    assert str(raised.value).startswith(f"{path}: ")
    if damage is not swapped:
        assert cordwood.load(path, prefix="p")["z"][0] == 300_000


def test_the_next_save_mends_it(path: Path) -> None:
    for damage in (missing, short, linked):
        damage(*packs(path))
        cordwood.save(path, TREE)
        cordwood.verify(path)
        assert cordwood.load(path)["n"] == 5
        assert len(list(path.glob("data-*"))) == 2
    assert (path.parent / "elsewhere").exists()  # what the link led to is not ours


def test_verify_names_leaf_file_and_range(path: Path) -> None:
    pack, _ = packs(path)
    with pack.open("r+b") as file:
        file.seek(4096 + MIB + 5)
        file.write(b"\xff\xff")
        file.seek(pack.stat().st_size - 1)
        file.write(b"\xff")
    with pytest.raises(CorruptionError) as raised:
        cordwood.verify(path)
    assert str(raised.value) == (
        f"{path}: 2 damaged ranges or files:\n"
        f"  bytes {4096 + MIB} to {4096 + 2 * MIB} of {pack.name}: a/w\n"
        f"  bytes {4096 + 2 * MIB} to {4096 + 2_400_007} of {pack.name}: a/w, a/b"
    )
    with pytest.raises(CorruptionError, match=f"{pack.name}: bytes {4096 + MIB} to"):
        cordwood.load(path)
    with cordwood.open(path) as checkpoint:
        assert checkpoint["a/w"][:3].tolist() == [0.0, 1.0, 2.0]


def test_more_files_of_a_save_than_it_wrote(path: Path) -> None:
    pack, _ = packs(path)
    surplus = pack.with_name(pack.name.replace("-0-0.", "-0-1."))
    shutil.copy(pack, surplus)
    with pytest.raises(CorruptionError, match=f"{surplus.name}: the index does not refer"):
        cordwood.verify(path)
    surplus.rename(pack.with_name(f"data-{'0' * 16}-0-1.safetensors"))
    assert cordwood.verify(path).leaves == 5  # of another save, which may be alive
    assert len(cordwood.gc(path)) == 1


def test_an_index_for_other_readers_that_is_not_of_this_save(path: Path) -> None:
    other = path / "model.safetensors.index.json"
    other.write_bytes(other.read_bytes().replace(b"a.w", b"a.v"))
    with pytest.raises(CorruptionError, match=r"index.json is not the one of this index"):
        cordwood.verify(path)
    other.unlink()
    cordwood.verify(path)
    other.symlink_to("/etc/passwd")
    with pytest.raises(CorruptionError, match="symbolic link"):
        cordwood.verify(path)


def test_a_directory_copied_elsewhere_is_the_same(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy")
    assert cordwood.verify(tmp_path / "copy") == cordwood.verify(path)._replace(
        path=str(tmp_path / "copy")
    )


def test_the_index_of_another_directory(path: Path, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "b", TREE)
    shutil.copy(tmp_path / "b" / "cordwood.json", path / "cordwood.json")
    with pytest.raises(CorruptionError, match="is missing: the checkpoint is incomplete"):
        cordwood.load(path)
