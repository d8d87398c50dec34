"""A replacement of a file or directory has at most its permissions, at every moment."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import cordwood
from cordwood.storage import syscalls
from tests.faults.systems import CountingSystem

TREE = {"a": {"b": np.arange(6.0)}}
FILES = ("m.safetensors", "m.msgpack", "m.msgpack.zst")
ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change groups")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def acl(user: int, perm: int, *, group: int, mask: int, other: int) -> bytes:
    """Return the extended attribute of an ACL that gives one user more rights than others."""
    none = 0xFFFFFFFF
    entries = [
        (1, 6, none),
        (2, perm, user),
        (4, group, none),
        (0x10, mask, none),
        (0x20, other, none),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_acl(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as e:
        pytest.skip(f"no ACLs here: {e}")


def acl_of(path: Path, name: str = ACL) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:
        return None


class Watching(CountingSystem):
    """Notes the mode, group and ACL of every file of a directory after each call."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.seen: set[tuple[str, int, int, bytes | None]] = set()

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = super()._make(number, name, call, args)
        for each in self._folder.iterdir():
            status = each.lstat()
            mode = stat.S_IMODE(status.st_mode)
            self.seen.add((each.name, mode, status.st_gid, acl_of(each)))
        return result

    def temporaries(self) -> list[tuple[int, int, bytes | None]]:
        return [rest for name, *rest in self.seen if name.endswith((".tmp", ".stage"))]  # type: ignore[misc]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604, 0o444, 0o400])
def test_a_file_that_was_made_private_stays_so(tmp_path: Path, name: str, mode: int) -> None:
    path = tmp_path / name
    cordwood.save(path, TREE)
    assert mode_of(path) == 0o644
    path.chmod(mode)
    watching = Watching(tmp_path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    assert mode_of(path) == mode
    assert watching.temporaries()
    for rights, *_ in watching.temporaries():
        assert rights & 0o077 & ~mode == 0


@pytest.mark.parametrize("name", FILES)
def test_the_umask_takes_away_from_what_the_old_file_allowed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    cordwood.save(path, TREE)
    path.chmod(0o666)
    cordwood.save(path, TREE)
    assert mode_of(path) == 0o644
    os.umask(0o077)
    cordwood.save(path, TREE)
    assert mode_of(path) == 0o600


def test_through_a_link_the_file_behind_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.msgpack"
    cordwood.save(path, TREE)
    path.chmod(0o600)
    (tmp_path / "link.msgpack").symlink_to(path)
    cordwood.save(tmp_path / "link.msgpack", TREE)
    assert (tmp_path / "link.msgpack").is_symlink()
    assert mode_of(path) == 0o600


@needs_root
@pytest.mark.parametrize("name", FILES)
def test_a_replaced_checkpoint_keeps_its_group(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    cordwood.save(path, TREE)
    os.chown(path, -1, 1234)
    path.chmod(0o640)
    watching = Watching(tmp_path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    assert (mode_of(path), path.stat().st_gid) == (0o640, 1234)
    for mode, group, _ in watching.temporaries():
        assert group == 1234 or mode & 0o077 == 0


@pytest.mark.parametrize(("mode", "expected"), [(0o640, 0o600), (0o644, 0o604), (0o604, 0o600)])
def test_without_leave_to_keep_the_group_its_rights_go(
    tmp_path: Path, mode: int, expected: int
) -> None:
    """Members of the group lose their rights too, where they count as others afterwards."""

    class Refusing(syscalls.SystemCalls):
        def chown(self, fd: int, group: int) -> None:
            raise PermissionError(1, "not a member")

    path = tmp_path / "m.safetensors"
    cordwood.save(path, TREE)
    if os.geteuid() != 0:
        pytest.skip("needs root, to change groups")
    os.chown(path, -1, 1234)
    path.chmod(mode)
    with syscalls.override(Refusing()):
        cordwood.save(path, TREE)
    assert (mode_of(path), path.stat().st_gid) == (expected, os.getegid())


class Fixed(syscalls.SystemCalls):
    """A file system that gives every file one mode, as FAT does."""

    def chmod(self, path: str | int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_modes_that_cannot_be_changed(
    tmp_path: Path, layout: Literal["packs", "zarr"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file has the same mode as the new one, whatever was asked for."""
    fstat, lstat = os.fstat, os.lstat

    def fixed(status: os.stat_result) -> os.stat_result:
        arguments = status.__reduce__()[1]
        assert isinstance(arguments, tuple)
        fields, exact_times = arguments
        return os.stat_result((stat.S_IFMT(status.st_mode) | 0o755, *fields[1:]), exact_times)

    monkeypatch.setattr(os, "fstat", lambda fd: fixed(fstat(fd)))
    monkeypatch.setattr(os, "lstat", lambda path, **options: fixed(lstat(path, **options)))
    os.umask(0o077)
    with syscalls.override(Fixed()):
        for number in range(2):
            for name in ("m.safetensors", "m.msgpack"):
                cordwood.save(tmp_path / name, {"a": number})
            cordwood.save(tmp_path / "ckpt", {"a": number}, format=layout)
    assert cordwood.load(tmp_path / "ckpt") == cordwood.load(tmp_path / "m.msgpack") == {"a": 1}


def test_more_rights_that_cannot_be_taken_away_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    cordwood.save(path, {"a": 0})
    path.chmod(0o600)
    monkeypatch.setattr("cordwood.storage.atomic_file.creation_mode", lambda old, folder: 0o666)
    with (
        syscalls.override(Fixed()),
        pytest.raises(PermissionError, match="while setting its permissions"),
    ):
        cordwood.save(path, {"a": 1})
    assert cordwood.load(path) == {"a": 0}
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_replaced_checkpoint_keeps_its_acl(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    cordwood.save(path, TREE)
    value = acl(1234, 4, group=0, mask=4, other=0)
    set_acl(path, ACL, value)
    watching = Watching(tmp_path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    assert acl_of(path) == value
    for mode, _, rights in watching.temporaries():
        assert rights == value or mode & 0o077 == 0


def test_without_leave_to_keep_the_acl_only_the_owner_has_rights(tmp_path: Path) -> None:
    class Refusing(syscalls.SystemCalls):
        def set_attribute(self, fd: int, name: str, value: bytes | None) -> None:
            raise OSError(95, "no ACLs here")

    path = tmp_path / "m.safetensors"
    cordwood.save(path, TREE)
    set_acl(path, ACL, acl(1234, 0, group=4, mask=4, other=4))
    with syscalls.override(Refusing()):
        cordwood.save(path, TREE)
    assert mode_of(path) == 0o600


def test_an_acl_that_was_removed_does_not_come_back_from_the_directory(tmp_path: Path) -> None:
    set_acl(tmp_path, DEFAULT_ACL, acl(1234, 6, group=6, mask=6, other=0))
    path = tmp_path / "m.safetensors"
    cordwood.save(path, TREE)
    assert acl_of(path) is not None  # that of a new file
    os.removexattr(path, ACL)
    path.chmod(0o660)
    watching = Watching(tmp_path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    assert (acl_of(path), mode_of(path)) == (None, 0o660)
    for mode, _, rights in watching.temporaries():
        assert rights is None or mode & 0o077 == 0


def test_small_files_of_a_directory_stay_private(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    cordwood.save(path, TREE)
    for name in ("cordwood.json", "model.safetensors.index.json"):
        (path / name).chmod(0o600)
    watching = Watching(path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    assert watching.temporaries()
    assert all(mode & 0o077 == 0 for mode, *_ in watching.temporaries())
    for name in ("cordwood.json", "model.safetensors.index.json"):
        assert mode_of(path / name) == 0o600


@needs_root
def test_the_zarr_layout_keeps_mode_group_and_acl_of_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    cordwood.save(path, TREE, format="zarr")
    os.chown(path, -1, 1234)
    path.chmod(0o2750)
    set_acl(path, ACL, acl(4321, 5, group=5, mask=5, other=0))
    set_acl(path, DEFAULT_ACL, acl(4321, 5, group=5, mask=5, other=0))
    before = mode_of(path), path.stat().st_gid, acl_of(path), acl_of(path, DEFAULT_ACL)
    watching = Watching(tmp_path)
    with syscalls.override(watching):
        cordwood.save(path, TREE)
    after = mode_of(path), path.stat().st_gid, acl_of(path), acl_of(path, DEFAULT_ACL)
    assert after == before
    for mode, _, _ in watching.temporaries():
        assert mode & 0o027 == 0  # while it is empty, another group may see that it is


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_a_private_directory_is_private_while_it_is_saved(
    tmp_path: Path, layout: Literal["packs", "zarr"]
) -> None:
    path = tmp_path / "ckpt"
    cordwood.save(path, TREE, format=layout)
    path.chmod(0o700)
    exposed: list[str] = []

    class Looking(syscalls.SystemCalls):
        def fsync(self, fd: int) -> None:
            for each in tmp_path.iterdir():
                if mode_of(each) & 0o077 and not each.name.endswith("lock"):
                    exposed.append(each.name)
            super().fsync(fd)

    with syscalls.override(Looking()):
        cordwood.save(path, TREE)
    assert mode_of(path) == 0o700
    assert exposed == []
