"""Files of every format of one file, in two versions, and the ways in which programs change one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood

PAST_NS = 1_600_000_000_000_000_000  # so that the clock has ticked since


def tree(version: int, *, elements: int = 5000) -> dict[str, Any]:
    """Return a tree that has one size in every version, and no element in common with another."""
    first = np.arange(elements, dtype=np.float32) + 1_000_000 * version
    return {"a": first, "b": first[::-1].copy(), "c": np.full(3, version, np.int32)}


def _saved(suffix: str) -> Callable[[dict[str, Any], Path], bytes]:
    def make(tree: dict[str, Any], folder: Path) -> bytes:
        path = folder / f"made.{suffix}"
        cordwood.save(path, tree)
        return path.read_bytes()

    return make


def _foreign_safetensors(tree: dict[str, Any], _folder: Path) -> bytes:
    from safetensors.numpy import save

    return save(tree)


def _npz(tree: dict[str, Any], _folder: Path) -> bytes:
    file = io.BytesIO()
    np.savez(file, **tree)
    return file.getvalue()


def _npy(tree: dict[str, Any], _folder: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, tree["a"])
    return file.getvalue()


def _eqx(tree: dict[str, Any], _folder: Path) -> bytes:
    file = io.BytesIO()
    for array in tree.values():
        np.save(file, array)
    return file.getvalue()


def _records(tree: dict[str, Any], _folder: Path) -> bytes:
    import msgpack

    return b"".join(
        [msgpack.packb(([key], cordwood.to_bytes(value))) for key, value in tree.items()]
    )


# By name: the suffix of the file, and the function that makes its bytes.
FORMATS: dict[str, tuple[str, Callable[[dict[str, Any], Path], bytes]]] = {
    "msgpack": ("msgpack", _saved("msgpack")),
    "msgpack.gz": ("msgpack.gz", _saved("msgpack.gz")),
    "msgpack.zst": ("msgpack.zst", _saved("msgpack.zst")),
    "records": ("msgpack", _records),
    "safetensors": ("safetensors", _saved("safetensors")),
    "foreign safetensors": ("safetensors", _foreign_safetensors),
    "npy": ("npy", _npy),
    "npz": ("npz", _npz),
    "eqx": ("eqx", _eqx),
}


def versions(name: str, folder: Path, *, elements: int = 5000) -> tuple[bytes, bytes]:
    """Return the bytes of two trees in a format."""
    make = FORMATS[name][1]
    return make(tree(1, elements=elements), folder), make(tree(2, elements=elements), folder)


def write_old(path: Path, data: bytes) -> None:
    """Write a file whose time stamp is long past."""
    path.write_bytes(data)
    os.utime(path, ns=(PAST_NS, PAST_NS))


def rewrite(path: Path, data: bytes) -> None:
    """Write over the bytes of a file in place, as `numpy.memmap` or `open(path, "r+b")` do."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def truncate(path: Path, data: bytes) -> None:
    os.truncate(path, len(data) // 2)


def empty(path: Path, _data: bytes) -> None:
    os.truncate(path, 0)


def extend(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    os.replace(other, path)


def delete(path: Path, _data: bytes) -> None:
    path.unlink()


IN_PLACE = {"rewrite": rewrite, "truncate": truncate, "empty": empty, "extend": extend}
CHANGES = {**IN_PLACE, "replace": replace, "delete": delete}


@contextmanager
def changed_at_read(path: Path, number: int, change: Callable[[], None]) -> Iterator[list[int]]:
    """Change a file just before it is read for that time, the first one being number 0.

    Yields a list of one item: the number of reads so far.
    """
    count = [0]
    real_path = os.path.realpath(path)

    def count_read(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == real_path:
            count[0] += 1
            if count[0] == number + 1:
                change()

    def pread(fd: int, length: int, offset: int) -> bytes:
        count_read(fd)
        return real_pread(fd, length, offset)

    def preadv(fd: int, views: Any, offset: int) -> int:
        count_read(fd)
        return real_preadv(fd, views, offset)

    real_pread, real_preadv = os.pread, os.preadv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", pread)
        patch.setattr(os, "preadv", preadv)
        yield count
