"""Every question about a path, for every kind of path."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.errors import StorageError
from cordwood.storage.paths import is_empty_file, is_folder, kind_at, path_exists


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for name in ("file", "empty", "folder", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(name)
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what", "empty", "exists"),
    [
        ("file", "a file", False, True),
        ("empty", "a file", True, True),
        ("folder", "a folder", False, True),
        ("nothing", "nothing", False, False),
        ("file/within", "nothing", False, False),
        ("to-file", "a file", False, True),
        ("to-empty", "a file", True, True),
        ("to-folder", "a folder", False, True),
        ("to-nowhere", "nothing", False, True),
    ],
)
def test_a_path_has_a_kind(folder: Path, name: str, what: str, empty: bool, exists: bool) -> None:
    path = folder / name
    assert kind_at(path) == what
    assert is_folder(path) == (what == "a folder")
    assert is_empty_file(path) == empty
    assert path_exists(path) == exists


@pytest.mark.parametrize("name", ["loop", "loop/within"])
def test_a_symbolic_link_to_itself_has_no_kind(folder: Path, name: str) -> None:
    with pytest.raises(StorageError, match="leads back to itself"):
        kind_at(folder / name)
    assert not is_folder(folder / name)
    assert path_exists(folder / name) == (name == "loop")
