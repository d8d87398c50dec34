"""Files that another program changes while a verb reads them: one whole version, or an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import Checkpoint
from cordwood.comparing.leaf_statistics import leaf_statistics
from cordwood.errors import CordwoodError, FileChangedError
from tests.changing_files import (
    CHANGES,
    FORMATS,
    IN_PLACE,
    changed_at_read,
    delete,
    empty,
    replace,
    rewrite,
    tree,
    versions,
    write_old,
)

_IN_MEMORY = ("msgpack.gz", "msgpack.zst")  # once they are open
LAZY_FORMATS = [name for name in FORMATS if name not in _IN_MEMORY]


def leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    return (
        [leaf for each in value for leaf in leaves(each)]
        if type(value) in (list, tuple)
        else [value]
    )


def expected_leaves(name: str, version: int) -> list[np.ndarray]:
    return leaves(tree(version))[: 1 if name == "npy" else None]


def is_version(value: Any, name: str, version: int) -> bool:
    expected = expected_leaves(name, version)
    found = leaves(value)
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def like_of(path: Path) -> Any:
    """Return the tree to load into, for a file whose leaves have no names."""
    return list(tree(0).values()) if path.suffix == ".eqx" else None


@pytest.mark.parametrize("name", LAZY_FORMATS)
@pytest.mark.parametrize("change", IN_PLACE)
@pytest.mark.parametrize("mmap", [False, True])
def test_an_open_checkpoint_is_refused_once_its_file_has_changed(
    tmp_path: Path, name: str, change: str, mmap: bool
) -> None:
    old, new = versions(name, tmp_path)
    path = tmp_path / f"x.{FORMATS[name][0]}"
    write_old(path, old)
    with cordwood.open(path) as checkpoint:
        IN_PLACE[change](path, new)
        with pytest.raises(
            FileChangedError, match=r"has changed since it was opened.*open it again"
        ):
            checkpoint.load(like_of(path), mmap=mmap)
        with pytest.raises(FileChangedError):
            checkpoint[next(iter(checkpoint))][0]
    if change == "rewrite":
        assert is_version(cordwood.load(path, like_of(path)), name, 2)  # what the error advises


@pytest.mark.parametrize("name", LAZY_FORMATS)
def test_an_open_checkpoint_whose_file_was_replaced_keeps_the_old_one(
    tmp_path: Path, name: str
) -> None:
    old, new = versions(name, tmp_path)
    path = tmp_path / f"x.{FORMATS[name][0]}"
    write_old(path, old)
    with cordwood.open(path) as checkpoint:
        replace(path, new)
        assert is_version(checkpoint.load(like_of(path)), name, 1)
        path.unlink()
        assert is_version(checkpoint.load(like_of(path)), name, 1)


def load(path: Path) -> Any:
    return cordwood.load(path, like_of(path))


def show(path: Path) -> None:
    with cordwood.open(path) as checkpoint:
        for leaf in checkpoint:
            leaf_statistics(checkpoint, leaf)


def compare(path: Path) -> Any:
    return cordwood.diff(path, path.with_name("copy of old" + "".join(path.suffixes)))


def convert(path: Path) -> Any:
    target = path.with_name("converted.safetensors")
    cordwood.convert(path, target, overwrite=True)
    return load(target)


def copy(path: Path) -> Any:
    target = path.with_name("copied" + "".join(path.suffixes))
    target.unlink(missing_ok=True)
    cordwood.copy(path, target)
    return load(target)


VERBS: dict[str, Callable[[Path], Any]] = {
    "load": load,
    "convert": convert,
    "copy": copy,
    "verify": cordwood.verify,
    "detect": cordwood.detect,
    "diff": compare,
    "show": show,
}


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (verb, name)
        for verb in VERBS
        for name in FORMATS
        if name != "eqx" or verb not in ("convert", "diff")  # its leaves have no names
    ],
)
def test_a_file_that_changes_during_a_call_is_read_as_a_whole_or_refused(
    tmp_path: Path, name: str, verb: str
) -> None:
    old, new = versions(name, tmp_path)
    path = tmp_path / f"x.{FORMATS[name][0]}"
    path.with_name(f"copy of old.{FORMATS[name][0]}").write_bytes(old)
    read = refused = deleted = 0
    for change in CHANGES.values():
        number = 0
        while True:
            write_old(path, old)
            with changed_at_read(path, number, partial(change, path, new)) as count:
                try:
                    result = VERBS[verb](path)
                except CordwoodError:
                    refused += 1
                except FileNotFoundError:
                    deleted += 1
                else:
                    read += 1
                    if verb in ("load", "convert", "copy"):
                        assert is_version(result, name, 1) or is_version(result, name, 2)
                    elif verb == "diff" and not result.equal:
                        assert len(result.leaves) == len(expected_leaves(name, 1))
            if count[0] <= number:  # the call has read less often than that
                break
            number = number + 1 if number < 8 else 2 * number
        assert not deleted or change is delete
    assert read
    assert refused or verb == "detect"


def test_a_change_to_the_same_size_in_the_same_tick_of_the_clock_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    old, new = versions("npy", tmp_path)
    for _ in range(20):
        path.write_bytes(old)
        with cordwood.open(path) as checkpoint:
            rewrite(path, new)
            with pytest.raises(FileChangedError):
                checkpoint[""][:]


def test_a_msgpack_file_that_is_cut_short_while_it_is_parsed_ends_no_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.msgpack"
    cordwood.save(path, {str(i): np.ones(300_000, np.uint8) for i in range(8)})
    size = path.stat().st_size
    with (
        changed_at_read(path, 3, partial(empty, path, b"")),
        pytest.raises(FileChangedError),
    ):
        cordwood.open(path)
    assert size > 2_000_000


def test_a_leaf_of_an_open_directory_is_refused_once_its_file_has_changed(tmp_path: Path) -> None:
    for elements, max_files in ((10, 1), (200_000, 200)):
        folder = tmp_path / f"zarr-{max_files}"
        cordwood.save(folder, tree(1, elements=elements), format="zarr")
        with cordwood.open(folder) as checkpoint:
            assert isinstance(checkpoint, Checkpoint)
            checkpoint["a"][0]
            chunk = max(path for path in folder.rglob("*") if path.is_file() and "a" in path.parts)
            rewrite(chunk, bytes(len(chunk.read_bytes())))
            with pytest.raises((FileChangedError, CordwoodError)):
                checkpoint["a"][0]
