"""detect, and what open and load make of paths that say nothing of their format."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import numpy as np
import pytest
import safetensors.numpy
import zstandard

import cordwood
from cordwood.errors import (
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    UnsupportedFormatError,
)
from tests.children import run_python
from tests.golden.hugging_face_shards import FOLDER as SHARDS
from tests.golden.orbax_checkpoints import GOLDEN as ORBAX
from tests.golden.orbax_checkpoints import LAYOUTS as ORBAX_LAYOUTS

TREE = {"a": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}}
FLAT = {"a.w": TREE["a"]["w"]}


def flax_bytes() -> bytes:
    return flax.serialization.to_bytes(TREE)


def archive() -> bytes:
    data = io.BytesIO()
    np.savez(data, w=TREE["a"]["w"])
    return data.getvalue()


def array() -> bytes:
    data = io.BytesIO()
    np.save(data, TREE["a"]["w"])
    return data.getvalue()


def own_file(path: Path) -> bytes:
    cordwood.save(path / "x.safetensors", TREE)
    return (path / "x.safetensors").read_bytes()


def torch_file() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/data.pkl", b"")
    return data.getvalue()


def zip_of_texts() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("notes.txt", b"")
    return data.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "safetensors": lambda: safetensors.numpy.save(FLAT),
    "npz": archive,
    "npy": array,
    "msgpack": flax_bytes,
    "msgpack.gz": lambda: gzip.compress(flax_bytes()),
    "msgpack.zst": lambda: zstandard.ZstdCompressor().compress(flax_bytes()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", ["", ".bin", ".safetensors", ".msgpack", ".npz"])
def test_files_by_their_bytes(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(FILES[name]())
    detected = cordwood.detect(path)
    assert (detected.format, detected.path, detected.steps) == (name, str(path), ())
    assert len(detected.description.split()) > 1
    if suffix not in ("", ".bin"):
        return
    with cordwood.open(path) as checkpoint:
        assert checkpoint.format == name
        assert len(checkpoint) == 1
    assert cordwood.verify(path).format == name
    leaf: Any = cordwood.load(path)
    while isinstance(leaf, dict):
        (leaf,) = leaf.values()
    np.testing.assert_array_equal(leaf, TREE["a"]["w"])


def test_a_known_suffix_decides(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(archive())
    with pytest.raises(FormatError, match="not a safetensors file"):
        cordwood.load(path)
    assert list(cordwood.load(path, format="npz")) == ["w"]


OTHERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "found an empty file"),
    "text": (b"hello, world", "12 bytes that begin with b'hello, w'"),
    "pickle": (pickle.dumps({"a": 1}), "a Python pickle, which cordwood never loads"),
    "torch": (torch_file(), "a PyTorch file .* write it with safetensors.torch.save_file"),
    "zip": (zip_of_texts(), "a zip archive without .npy members"),
    "cut zip": (b"PK\3\4" + bytes(60), "a zip archive that is cut short: download or copy it"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file"),
    "gguf": (b"GGUF\3\0\0\0", "a GGUF file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
    "tar.gz": (gzip.compress(b"notes" * 9), "a gzip stream that does not contain"),
    "zst": (
        zstandard.ZstdCompressor().compress(b"notes" * 9),
        "a zstd stream that does not contain",
    ),
    "cut gzip": (b"\x1f\x8b\x08", "a gzip stream that does not contain"),
    "cut msgpack": (flax_bytes()[:-1], "bytes that begin with"),
    "a long header": (b"\xff" * 8 + b"{", "9 bytes that begin with"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_no_known_format(tmp_path: Path, name: str) -> None:
    data, message = OTHERS[name]
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    for call in (cordwood.detect, cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(
            UnsupportedFormatError, match=f"expected a file of one .* npz, .*{message}"
        ) as caught:
            call(path)
        assert str(path) in str(caught.value)


def test_every_format_of_directories_is_detected(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "packs", TREE)
    cordwood.save(tmp_path / "zarr", TREE, format="zarr")
    for name in ("packs", "zarr"):
        assert cordwood.detect(tmp_path / name).format == name
    assert cordwood.detect(f"file://{tmp_path}/packs").path == f"{tmp_path}/packs"
    for layout in ORBAX_LAYOUTS:
        assert cordwood.detect(ORBAX / layout)[:2] == ("orbax", "an Orbax checkpoint")
    detected = cordwood.detect(SHARDS)
    assert detected.format == "safetensors-shards"
    assert "Hugging Face" in detected.description


def test_directories_that_are_none(tmp_path: Path) -> None:
    looked_for = (
        r"no index \(cordwood\.json or tensorstore_index\.json or _METADATA or "
        r"\*\.safetensors\.index\.json"
    )
    with pytest.raises(IncompleteCheckpointError, match="is an empty directory: expected"):
        cordwood.detect(tmp_path)
    own_file(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        IncompleteCheckpointError,
        match=f"it contains config.json, x.safetensors, and {looked_for}.*; "
        f"one of its files can be loaded by itself: {tmp_path}/x.safetensors",
    ):
        cordwood.load(tmp_path)
    cordwood.save(tmp_path / "killed", TREE)
    for name in ("cordwood.json", "model.safetensors.index.json"):
        (tmp_path / "killed" / name).unlink(missing_ok=True)
    message = r"it contains data-.*; wait if a save to it is still running; otherwise load another"
    with pytest.raises(IncompleteCheckpointError, match=message):
        cordwood.load(tmp_path / "killed")
    cordwood.save(tmp_path / "both", TREE)
    (tmp_path / "both/tensorstore_index.json").write_text("{}")
    with pytest.raises(NotACheckpointError, match=r"has both cordwood\.json and tensor"):
        cordwood.detect(tmp_path / "both")


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    for step in ("9", "10"):
        (tmp_path / "run" / step).mkdir(parents=True)
    no_step = r"\(no step is complete; the newest is .*/run/10\)"
    with pytest.raises(FileNotFoundError, match=no_step):
        cordwood.load(tmp_path / "run/latest")
    for path in (tmp_path / "none", tmp_path / "none.npz", "memory://test-detect/none"):
        with pytest.raises(FileNotFoundError):
            cordwood.detect(path)
    with pytest.raises(UnsupportedFormatError, match="the scheme 'ftp' is unknown"):
        cordwood.detect("ftp://example.com/model.safetensors")


@pytest.mark.parametrize("pattern", ["{}", "step_{}", "step-{:08d}", "checkpoint_{}", "run-{}"])
def test_directories_of_steps_are_named_with_their_steps(tmp_path: Path, pattern: str) -> None:
    steps = [pattern.format(i) for i in (20, 3, 100)]
    for name in steps:
        cordwood.save(tmp_path / name, TREE)
    (tmp_path / "notes.txt").write_text("no step")
    ordered = (steps[1], steps[0], steps[2])
    detected = cordwood.detect(tmp_path)
    assert detected == (
        "steps",
        f"a directory of 3 steps: {', '.join(ordered)}",
        str(tmp_path),
        ordered,
    )
    expected = (
        f"{tmp_path} is a directory of 3 steps ({', '.join(ordered)}), not a checkpoint: "
        f"load one of them; the newest is {tmp_path}/{steps[2]}; "
        f"`cordwood steps {tmp_path}` lists all"
    )
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(IncompleteCheckpointError, match=re.escape(expected)):
            call(tmp_path)
    assert cordwood.detect(tmp_path / steps[2]).format == "packs"


def test_the_newest_step_is_one_that_is_whole(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / str(i)).mkdir()
    cordwood.save(tmp_path / "25", TREE)
    with pytest.raises(
        IncompleteCheckpointError,
        match=r"30 steps \(0, 1, 2, 3, \.\.\., 26, 27, 28, 29\).* the newest is .*/25; `",
    ):
        cordwood.load(tmp_path)
    shutil.rmtree(tmp_path / "25")
    with pytest.raises(IncompleteCheckpointError, match=r"the newest is .*/29; `"):
        cordwood.load(tmp_path)


def test_steps_that_are_files(tmp_path: Path) -> None:
    """flax.training.checkpoints writes such steps."""
    for name in ("checkpoint_10", "checkpoint_9.msgpack"):
        (tmp_path / name).write_bytes(flax_bytes())
    (tmp_path / "0").write_bytes(b"a chunk")
    assert cordwood.detect(tmp_path).steps == ("checkpoint_9.msgpack", "checkpoint_10")
    with pytest.raises(IncompleteCheckpointError, match=r"the newest is .*checkpoint_10"):
        cordwood.load(tmp_path)
    assert list(cordwood.load(tmp_path / "checkpoint_10")) == ["a"]


def test_a_checkpoint_with_numbers_in_it_is_no_directory_of_steps(tmp_path: Path) -> None:
    cordwood.save(tmp_path, {"0": np.ones(1), "1": np.ones(2)}, format="zarr")
    assert (tmp_path / "0").is_dir()
    assert cordwood.detect(tmp_path).format == "zarr"


def test_what_lies_below_a_url_is_detected() -> None:
    url = "memory://test-detect/run"
    for step in ("step-9", "step-10"):
        cordwood.save(f"{url}/{step}", TREE)
    assert cordwood.detect(f"{url}/step-9").format == "packs"
    assert cordwood.detect(url).steps == ("step-9", "step-10")
    with pytest.raises(
        IncompleteCheckpointError,
        match=f"2 steps .step-9, step-10.*newest is {url}/step-10",
    ):
        cordwood.load(url)
    cordwood.save("memory://test-detect/other/model", TREE)
    with pytest.raises(IncompleteCheckpointError, match=r"found model$"):
        cordwood.detect("memory://test-detect/other")


def test_detection_imports_no_jax(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "x", TREE)
    code = """
    import sys
    import cordwood
    assert cordwood.detect(sys.argv[1]).format == "packs"
    assert "jax" not in sys.modules and "tensorstore" not in sys.modules
    """
    run_python(code, str(tmp_path / "x"))


def test_folders_with_the_suffix_of_a_file_are_no_steps(tmp_path: Path) -> None:
    (tmp_path / "5.npz").mkdir()
    with pytest.raises(IncompleteCheckpointError):
        cordwood.load(tmp_path)


@pytest.mark.parametrize("name", ["run.exp", "lm.nlp", "try.ex2", "a.np2", "b.x"])
def test_names_of_directories_that_are_like_those_of_numpys_files(
    tmp_path: Path, name: str
) -> None:
    cordwood.save(tmp_path / name, {"w": np.ones(3)})
    assert cordwood.detect(tmp_path / name).format == "packs"


def test_a_format_that_is_only_read(tmp_path: Path) -> None:
    message = (
        r"c: ocdbt is read, and not written; expected one of 'safetensors', .*'zarr'.* as format="
    )
    with pytest.raises(UnsupportedFormatError, match=message):
        cordwood.save(tmp_path / "c", TREE, format="ocdbt")
