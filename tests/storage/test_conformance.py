"""Local directories and an object store in memory pass the conformance suite of storages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.storage.conformance import (
    Check,
    FolderFiles,
    Storage,
    checks_of,
    files_of_killed_saves_are_collected,
)

_numbers = itertools.count()


def local(folder: Path) -> Storage:
    return Storage(folder / "a" / "b", FolderFiles(folder / "a" / "b"))


def file_url(folder: Path) -> Storage:
    path = folder / "a 1" / "b"
    return Storage(path.as_uri(), FolderFiles(path))


def zarr(folder: Path) -> Storage:
    """Return a directory of the layout whose saves replace the old directory."""
    return Storage(folder / "a", FolderFiles(folder / "a"), {"format": "zarr"})


def memory(folder: Path) -> Storage:
    return Storage(f"memory://conformance/{next(_numbers)}")


STORAGES: Mapping[Callable[[Path], Storage], Sequence[Check]] = {
    local: checks_of(has_files=True),
    file_url: checks_of(has_files=True),
    zarr: [
        check
        for check in checks_of(has_files=True, has_runs=False)
        if check is not files_of_killed_saves_are_collected  # they are not in the directory
    ],
    memory: checks_of(has_files=False),
}


@pytest.mark.parametrize(
    ("make", "check"),
    [
        pytest.param(make, check, id=f"{make.__name__}-{check.__name__}")
        for make, checks in STORAGES.items()
        for check in checks
    ],
)
def test_a_local_storage_passes_each_check(
    make: Callable[[Path], Storage], check: Check, tmp_path: Path
) -> None:
    check(make(tmp_path))
