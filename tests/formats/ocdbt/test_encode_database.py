"""The database that cordwood writes, read by TensorStore and by cordwood's reader."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from cordwood.formats.ocdbt.encode_database import FileRange, encode_database
from cordwood.formats.ocdbt.values import OcdbtValues
from cordwood.storage.local_directory import LocalDirectory

FILES = {"pack-0": bytes(range(256)) * 8, "folder/pack-1": b"hello world" * 100}


def ranges() -> st.SearchStrategy[FileRange]:
    files = st.sampled_from(sorted(FILES))
    return st.builds(FileRange, files, st.integers(0, 1000), st.integers(1, 100))


def expected_value(value: bytes | FileRange) -> bytes:
    if isinstance(value, bytes):
        return value
    return FILES[value.file][value.offset : value.offset + value.length]


def write_database(folder: Path, values: dict[str, bytes | FileRange], node_entries: int) -> None:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    database = encode_database(values, node_file="nodes", node_entries=node_entries)
    (folder / "nodes").write_bytes(database.nodes)
    (folder / "manifest.ocdbt").write_bytes(database.manifest)


def read_by_tensorstore(folder: Path) -> dict[str, bytes]:
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    keys = store.list().result()
    return {key.decode(): bytes(store.read(key).result().value) for key in keys}


def read_by_cordwood(folder: Path) -> dict[str, bytes]:
    with LocalDirectory(folder) as directory:
        database = OcdbtValues(directory)
        values = {}
        for key in database.keys:
            location = database.find("", key)
            assert location is not None
            values[key] = database.read(location, 0, location.length)
        return values


@given(
    values=st.dictionaries(st.text(max_size=12), st.binary(max_size=40) | ranges(), max_size=60),
    node_entries=st.sampled_from([2, 3, 10, 1000]),
)
def test_any_values_are_read_by_tensorstore_and_by_cordwood(
    values: dict[str, bytes | FileRange], node_entries: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_database(Path(folder), values, node_entries)
        expected = {key: expected_value(value) for key, value in values.items()}
        assert read_by_tensorstore(Path(folder)) == expected
        assert read_by_cordwood(Path(folder)) == expected


def entries_of(i: int) -> list[tuple[str, bytes | FileRange]]:
    return [(".zarray", b"%d" % i), ("0.0", FileRange("pack-0", i, 20))]


def test_a_tree_of_three_levels(tmp_path: Path) -> None:
    values: dict[str, bytes | FileRange] = {
        f"layers.{i}.kernel/{name}": value for i in range(50) for name, value in entries_of(i)
    }
    write_database(tmp_path, values, 5)
    assert read_by_tensorstore(tmp_path) == {k: expected_value(v) for k, v in values.items()}


@pytest.mark.parametrize("order", [1, -1])
def test_the_same_values_give_the_same_bytes(order: int) -> None:
    values: dict[str, bytes | FileRange] = {"b": b"x", "a": FileRange("f", 1, 2)}
    ordered = {key: values[key] for key in sorted(values)[::order]}
    assert encode_database(ordered, node_file="nodes") == encode_database(values, node_file="nodes")


def test_a_value_of_several_keys_is_stored_once(tmp_path: Path) -> None:
    long = b"the same text for each key"
    values: dict[str, bytes | FileRange] = {f"key {i}": long for i in range(100)}
    values["short"] = values["other"] = b"short"
    write_database(tmp_path, values, 10)
    assert (tmp_path / "nodes").read_bytes().count(long) == 1
    assert read_by_tensorstore(tmp_path) == values
    assert read_by_cordwood(tmp_path) == values


def test_a_database_of_few_values_is_small() -> None:
    values: dict[str, bytes | FileRange] = {
        f"layers.{i}.kernel/0.0": FileRange("pack-0", 1000 * i, 1000) for i in range(450)
    }
    database = encode_database(values, node_file="nodes")
    assert len(database.manifest) < 100
    assert len(database.nodes) < 450 * 25
