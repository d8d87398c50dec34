"""Directories by URL: in object stores, and as another way to write a path.

tests/storage/conformance.py has what holds for every storage.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import obstore
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from obstore import exceptions

import cordwood
from cordwood.errors import (
    CorruptionError,
    StorageError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.plan.cells import FileSizes
from cordwood.storage.locations import parse_location
from cordwood.storage.object_stores.object_storage import ObjectStorage
from cordwood.testing import assert_trees_equal
from tests.storage.conformance import FolderFiles
from tests.storage.stores import KINDS, StoredObjects, new_url

SMALL = FileSizes(pack_bytes=1000, max_packs=512, part_bytes=600)


@pytest.fixture(params=["path", "file", *KINDS])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    path = tmp_path / "run 1" / "ckpt"
    if request.param == "path":
        yield str(path)
    elif request.param == "file":
        yield path.as_uri()
    else:
        with new_url(request.param, monkeypatch) as url:
            yield f"{url}/run 1/ckpt"


@pytest.fixture(params=KINDS)
def object_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_url(request.param, monkeypatch) as url:
        yield f"{url}/ckpt"


def files_of(url: str) -> MutableMapping[str, bytes]:
    """Return the files at a path or URL."""
    local = str(parse_location(url))
    return StoredObjects(url) if "://" in str(local) else FolderFiles(Path(local))


def tree() -> dict[str, Any]:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

    def spread(shape: tuple[int, ...], *axes: str | None) -> jax.Array:
        values = np.random.default_rng(0).random(shape, np.float32)
        return jax.device_put(values, NamedSharding(mesh, PartitionSpec(*axes)))

    return {
        "layers": [{"w": spread((16, 24), "x", "y"), "b": spread((24,), "y")} for _ in range(3)],
        "whole": spread((40, 10)),
        "numpy": np.arange(7, dtype=np.int16),
        "step": 12,
        "name": "é",
        "nothing": None,
    }


def test_a_file_url_is_the_path(tmp_path: Path) -> None:
    cordwood.save(tmp_path.as_uri() + "/a%20b", {"w": 1})
    assert cordwood.load(tmp_path / "a b") == {"w": 1}
    cordwood.save(f"{tmp_path.as_uri()}/x.safetensors", {"w": 2})
    assert cordwood.load(tmp_path / "x.safetensors") == {"w": 2}


def test_results_and_errors_have_the_spelling_of_the_caller() -> None:
    cordwood.save("memory://spelling/run/1", {"w": 1.5})
    with cordwood.open("MEMORY://spelling/run/1/") as checkpoint:
        assert checkpoint.path == "MEMORY://spelling/run/1/"
    with cordwood.open("MEMORY://spelling/run/latest/") as checkpoint:
        assert checkpoint.path == "MEMORY://spelling/run/1"
    assert cordwood.verify("MEMORY://spelling/run/1/").path == "MEMORY://spelling/run/1/"
    with pytest.raises(UnsupportedFormatError, match=r"^MEMORY://spelling/a\.msgpack: an obj"):
        cordwood.save("MEMORY://spelling/a.msgpack", {"w": 1.5})
    assert cordwood.StepReader("MEMORY://spelling/run/").root == "memory://spelling/run"


def test_objects_are_small(object_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells too large for an object are cut, and go together again."""
    monkeypatch.setattr(ObjectStorage, "file_sizes", SMALL)
    saved = tree()
    cordwood.save(object_url, saved)
    sizes = [len(data) for name, data in files_of(object_url).items() if name.startswith("data-")]
    assert len(sizes) > 3
    assert max(sizes) < 4096 + 2000  # the header's room, and the data
    assert_trees_equal(cordwood.load(object_url, like=saved), saved)
    cordwood.verify(object_url)


def test_damage_in_a_store_is_found_and_located(url: str) -> None:
    cordwood.save(url, {"a": {"w": np.arange(1000)}})
    files = files_of(url)
    (name,) = [name for name in files if name.startswith("data-")]
    data = files[name]

    def put(damaged: bytes) -> None:
        files[name] = damaged

    put(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    with pytest.raises(CorruptionError, match=name):
        cordwood.load(url)
    with pytest.raises(CorruptionError, match=rf"bytes 4096 to 12096 of {name}: a/w"):
        cordwood.verify(url)
    put(data[:-1])
    with pytest.raises((CorruptionError, TruncatedError), match=f"{name}: expected 12096 bytes"):
        cordwood.load(url)
    put(data + b"\0")
    with pytest.raises(CorruptionError, match=f"{name}: expected 12096 bytes"):
        cordwood.load(url)
    del files[name]
    with pytest.raises(CorruptionError, match=f"{name} is missing"):
        cordwood.load(url)
    with pytest.raises(CorruptionError, match=f"{name} is missing"):
        cordwood.verify(url)


def test_a_store_that_fails_keeps_the_old(object_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cordwood.save(object_url, {"w": np.arange(5)})
    before = dict(files_of(object_url))
    put = obstore.put_async
    calls = itertools.count(1)

    async def failing(*args: Any, **named: Any) -> Any:
        if next(calls) == 3:
            raise exceptions.GenericError("status: 400 Bad Request: the network is gone")
        return await put(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "file_sizes", SMALL)
        patch.setattr(obstore, "put_async", failing)
        with pytest.raises(StorageError, match=r"the store failed while writing it: .* is gone"):
            cordwood.save(object_url, [np.arange(300) for _ in range(8)])
        assert next(calls) > 3
    assert dict(files_of(object_url)) == before
    assert_trees_equal(cordwood.load(object_url), {"w": np.arange(5)})


def test_objects_cannot_be_mapped(object_url: str) -> None:
    cordwood.save(object_url, {"w": np.arange(5)})
    with pytest.raises(io.UnsupportedOperation, match="without mmap=True"):
        cordwood.load(object_url, mmap=True)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (
            "zz://bucket/x",
            {},
            "expected a path, or a URL of one of az://, file://, gs://, hf://, http",
        ),
        ("memory://bucket/x.safetensors", {}, "an object store holds directories"),
        ("memory://bucket/x", {"format": "safetensors"}, "an object store holds directories"),
        ("memory://bucket/x", {"format": "zarr"}, "the format 'zarr' is compressed"),
        ("memory://bucket/../x", {}, "expected names between the slashes"),
        (Path("gs://bucket/x"), {}, "pass a str such as 'gs://bucket/x'"),
    ],
)
def test_files_and_unknown_schemes_are_refused(
    url: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        cordwood.save(url, {"w": 1}, **options)
    assert message in str(caught.value)
    if "format" not in options:
        with pytest.raises(UnsupportedFormatError) as caught:
            cordwood.load(url, **options)
        assert message in str(caught.value)


def test_paths_are_no_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("memory:x", "./memory://x", Path("sub/memory:/x"), tmp_path / "gs:" / "b"):
        cordwood.save(path, {"w": 1})
        assert cordwood.load(path) == {"w": 1}
        assert os.path.isdir(path)


@pytest.mark.parametrize(
    "use",
    [
        cordwood.open,
        cordwood.load,
        cordwood.verify,
        cordwood.detect,
        cordwood.gc,
        cordwood.CheckpointManager,
        cordwood.StepReader,
        lambda path: cordwood.save(path, {}),
        lambda path: cordwood.save_async(path, {}),
        lambda path: cordwood.diff({}, path),
        lambda path: cordwood.convert(path, "a.safetensors"),
        lambda path: cordwood.convert("a.safetensors", path),
    ],
)
def test_the_current_directory_is_not_meant_by_mistake(use: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="expected a path or a URL, found '';"):
        use("")
