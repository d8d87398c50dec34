"""Directories that go while they are listed."""

from __future__ import annotations

from pathlib import Path

from cordwood.storage.directories import list_entries, list_names, list_subdirectories


def test_a_directory_that_was_removed_is_empty(tmp_path: Path) -> None:
    """Process 0 removes what a killed save left while process 1 looks at the same path."""
    gone = str(tmp_path / "gone")
    assert list_names(gone) == []
    assert list_subdirectories(gone) == set()
    assert list_entries(gone) == {}
