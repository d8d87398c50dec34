"""Files that numpy and jax.numpy write, read by cordwood: values, dtypes, slices, maps, meshes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cordwood
from cordwood.errors import CorruptionError, LimitError, MismatchError, UnsupportedFormatError
from cordwood.formats.numpy_files import read_eqx, read_npy, read_npz
from cordwood.index import Encoded, Pieces
from cordwood.io.memory_file import MemoryFile
from tests.golden.numpy_files import ARRAY, ARRAYS, FOLDER

savez: Callable[..., Any] = np.savez  # whose annotations know no names of arrays
SAVERS: list[Callable[..., Any]] = [savez, np.savez_compressed, jnp.savez]
NAMES = ["b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[ns]", "m8[D]"]


READ_INDEX = {
    "npy": read_npy.read_index,
    "npz": read_npz.read_index,
    "eqx": read_eqx.read_eqx_index,
}


def same(result: Any, expected: Any) -> None:
    """Equal, in this machine's byte order."""
    assert type(result) is np.ndarray
    assert result.dtype == expected.dtype.newbyteorder("=")
    assert result.shape == expected.shape
    assert result.tobytes() == expected.astype(result.dtype).tobytes()


def mixed() -> dict[str, np.ndarray]:
    return {
        "c": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "f": np.asfortranarray(np.arange(24, dtype=np.int64).reshape(2, 3, 4)),
        "big": np.arange(5, dtype=">f8"),
        "both": np.asfortranarray(np.arange(6, dtype=">u2").reshape(3, 2)),
        "bf16": np.arange(3).astype(ml_dtypes.bfloat16),
        "scalar": np.array(2.5),
        "empty": np.zeros((3, 0), ">i4"),
    }


@pytest.mark.parametrize("name", ["numpy-2.4.6.npz", "numpy-2.4.6-deflated.npz"])
def test_golden_archives_of_numpy_are_read(name: str) -> None:
    result = cordwood.load(FOLDER / name)
    assert list(result) == list(ARRAYS)
    for key, value in ARRAYS.items():
        same(result[key], value)
    checked = cordwood.verify(FOLDER / name)
    assert checked.verified_bytes > 500


def test_a_golden_array_of_numpy_is_read() -> None:
    same(cordwood.load(FOLDER / "numpy-2.4.6.npy"), ARRAY)


@given(
    hnp.arrays(
        st.builds(
            np.dtype.newbyteorder, st.sampled_from(NAMES).map(np.dtype), st.sampled_from("<>")
        ),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_array_that_numpy_saves_is_read(
    array: np.ndarray, fortran: bool, deflated: bool
) -> None:
    array = np.asfortranarray(array) if fortran else array
    one, many = io.BytesIO(), io.BytesIO()
    np.save(one, array)
    (np.savez_compressed if deflated else np.savez)(many, array)
    for name, data in (("npy", one), ("npz", many)):
        result = loaded(name, data.getvalue())
        expected = array.astype(array.dtype.newbyteorder("="))
        (value,) = result.values() if isinstance(result, dict) else [result]
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def loaded(name: str, data: bytes, **options: Any) -> Any:
    from cordwood import Checkpoint
    from cordwood.formats.format_protocol import Opened
    from cordwood.loading.leaf_reader import LeafReader

    file = MemoryFile(data, f"x.{name}")
    index = READ_INDEX[name](file)
    return Checkpoint(LeafReader(f"x.{name}", Opened(name, index, (file,)))).load(**options)


@pytest.mark.parametrize("save", SAVERS, ids=lambda save: save.__name__)
def test_archives_are_loaded_mapped_and_sliced(tmp_path: Path, save: Callable[..., Any]) -> None:
    path = tmp_path / "x.npz"
    arrays = mixed()
    save(path, **arrays)
    expected = {name: np.asarray(value) for name, value in arrays.items()}
    for mmap, verify in [(False, None), (True, None), (True, True)]:
        result = cordwood.load(path, mmap=mmap, verify=verify)
        for name, value in expected.items():
            same(result[name], value)
    with cordwood.open(path) as checkpoint:
        assert checkpoint.format == "npz"
        for name in ("c", "f"):
            for index in [(1,), (slice(None), 2), (..., slice(None, None, 2)), (0, 1, 3)]:
                np.testing.assert_array_equal(checkpoint[name][index], expected[name][index])


def test_eager_arrays_are_writable_and_stored_ones_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    savez(path, **mixed())
    result = cordwood.load(path)
    assert all(value.flags.writeable for value in result.values())
    mapped = cordwood.load(path, mmap=True)
    assert not mapped["c"].flags.writeable
    assert not mapped["c"].flags.owndata


def test_onto_a_mesh_and_like(tmp_path: Path) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("x"))
    w = np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
    for save in SAVERS:
        for array in (w, np.asfortranarray(w)):
            save(tmp_path / "x.npz", **{"a.w": array})
            like = {"a": {"w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=rows)}}
            result = cordwood.load(tmp_path / "x.npz", like=like)["a"]["w"]
            assert result.sharding == rows
            np.testing.assert_array_equal(result, w)
    np.save(tmp_path / "x.npy", w)
    result = cordwood.load(tmp_path / "x.npy", mesh=mesh, rules=[("", jax.P(None, "x"))])
    assert result.sharding.spec == jax.P(None, "x")
    np.testing.assert_array_equal(result, w)


def test_names_with_slashes_are_key_paths(tmp_path: Path) -> None:
    """Keys with slashes, as big_vision and others flatten their trees."""
    path = tmp_path / "x.npz"
    savez(path, **{"params/w.0": np.ones(2), "params/b": np.zeros(1)})
    assert list(cordwood.load(path)) == ["params/w.0", "params/b"]
    assert list(cordwood.load(path, nest=True)["params"]) == ["w.0", "b"]
    like = {"params": {"b": np.zeros(1), "w.0": np.zeros(2)}}
    np.testing.assert_array_equal(cordwood.load(path, like=like)["params"]["w.0"], np.ones(2))
    with pytest.raises(MismatchError, match=r"params/w\.0: expected float64\[3\]"):
        cordwood.load(path, like={"params": {"b": np.zeros(1), "w.0": np.zeros(3)}})


def test_members_that_are_no_arrays_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.save(tmp_path / "w.npy", np.ones(2))
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("notes.txt", b"three words here" * 99)
            archive.writestr("empty", b"")
            archive.writestr("folder/", b"")
            archive.write(tmp_path / "w.npy", "w.npy")
        result = cordwood.load(path)
        np.testing.assert_array_equal(result.pop("w"), np.ones(2))
        assert result == {"notes.txt": b"three words here" * 99, "empty": b""}
        cordwood.verify(path)


def test_an_empty_archive_is_an_empty_dict(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz")
    assert cordwood.load(tmp_path / "x.npz") == {}


def test_archives_that_others_write(tmp_path: Path) -> None:
    """To a stream (the sizes follow the data), with a comment, with names that are not ASCII."""
    path = tmp_path / "x.npz"
    array = io.BytesIO()
    np.save(array, np.arange(9))

    class Stream(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += data
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("größe.npy", array.getvalue())
        archive.comment = b"PK\5\6 is how it ends"
    path.write_bytes(stream.data)
    same(cordwood.load(path)["größe"], np.arange(9))


def test_sizes_and_counts_of_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64-bit fields, as in archives of 4 GiB or of 65,535 members."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", np.arange(50), np.ones(3))
        raw = (tmp_path / "x.npz").read_bytes()
        assert b"PK\6\6" in raw
        assert b"PK\6\7" in raw
        result = cordwood.load(tmp_path / "x.npz")
        same(result["arr_0"], np.arange(50))
        same(result["arr_1"], np.ones(3))


def test_how_arrays_are_stored() -> None:
    def storage(array: np.ndarray) -> Any:
        data = io.BytesIO()
        np.save(data, array)
        (leaf,) = read_npy.read_index(MemoryFile(data.getvalue())).leaves
        return leaf.storage

    assert isinstance(storage(np.ones((2, 3))), Pieces)
    assert storage(np.ones(3, ">f4")).encoding == "swapped"
    assert isinstance(storage(np.asfortranarray(np.ones((2, 3)))), Encoded)
    column = storage(np.asfortranarray(np.ones((1024, 6, 1024), np.int16)))
    assert [piece.length for piece in column.pieces] == [3 << 20] * 4
    prime = storage(np.asfortranarray(np.ones((2, 700_001), np.int32)))
    assert len(prime.pieces) == 1


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.arange(1000.0)
    for save in (np.savez, np.savez_compressed):
        save(path, fine=np.ones(3), hurt=array)
        raw = bytearray(path.read_bytes())
        at = raw.find(array[500:].tobytes()) if save is savez else raw.find(b"hurt") + 500
        raw[at] ^= 16
        path.write_bytes(raw)
        with pytest.raises(CorruptionError, match=r"x\.npz: .*(CRC-32|damaged)"):
            cordwood.load(path)
        with pytest.raises(CorruptionError, match=r"bytes [0-9]+ to [0-9]+ of .*: hurt"):
            cordwood.verify(path)
        with pytest.raises(CorruptionError, match="hurt"):
            cordwood.load(path, mmap=True, verify=True)
        with cordwood.open(path) as checkpoint:
            np.testing.assert_array_equal(checkpoint["fine"][1:], np.ones(2))


def test_a_limit_for_what_members_inflate_to(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(1 << 20, np.uint8), b=np.zeros(1 << 10))
    size = (1 << 20) + (8 << 10) + 2 * 128  # a header each
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(LimitError, match=f"a.npz: .* pass max_bytes={size}"):
            call(path, max_bytes=1 << 20)
        call(path, max_bytes=size)
    with pytest.raises(LimitError, match="pass max_bytes"):
        cordwood.convert(path, tmp_path / "b.safetensors", max_bytes=1 << 20)
    assert not (tmp_path / "b.safetensors").exists()
    np.savez(tmp_path / "stored.npz", a=np.zeros(1 << 20, np.uint8))
    cordwood.load(tmp_path / "stored.npz", max_bytes=1)


def test_they_are_not_written(tmp_path: Path) -> None:
    for name in ("x.npz", "x.npy"):
        with pytest.raises(UnsupportedFormatError, match="is read, and not written"):
            cordwood.save(tmp_path / name, {"a": 1})


def test_the_format_by_name(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        np.savez(file, a=np.ones(2))
    np.testing.assert_array_equal(
        cordwood.load(tmp_path / "weights", format="npz")["a"], np.ones(2)
    )
    assert read_npz.FORMAT == "npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(60.0).reshape(5, 12),
        np.asfortranarray(np.arange(60.0).reshape(5, 12)),
        np.arange(60, dtype=">i4"),
    ],
    ids=["C", "Fortran", "big-endian"],
)
def test_damage_in_any_kind_of_member_is_found_by_load(
    tmp_path: Path, save: Callable[..., Any], array: np.ndarray
) -> None:
    path = tmp_path / "x.npz"
    save(path, a=array)
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.infolist()
    data = bytearray(path.read_bytes())
    extra_bytes = int.from_bytes(data[member.header_offset + 28 :][:2], "little")
    end = member.header_offset + 30 + len(member.filename) + extra_bytes + member.compress_size
    data[end - 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(cordwood.CordwoodError, match=r"CRC-32|damaged|deflate"):
        cordwood.load(path)
    with pytest.raises(cordwood.CordwoodError):
        cordwood.verify(path)
