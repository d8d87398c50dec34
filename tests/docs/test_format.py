"""docs/format.md agrees with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cordwood.deltas import tile_encoding, tile_grid
from cordwood.dtypes import DTYPES
from cordwood.encoding.cordwood_metadata import HEADER_START, VERSION, VERSION_KEY
from cordwood.encoding.json_tree_structure import MAX_KEY_DEPTH
from cordwood.encoding.tensor_names import MAX_NAME_BYTES
from cordwood.formats.numpy_files import npy_header, read_eqx
from cordwood.formats.numpy_files.read_npz import MAX_RATIO
from cordwood.formats.ocdbt.body_reader import MAX_KEY_BYTES
from cordwood.formats.ocdbt.envelope import MAX_NODE_BYTES
from cordwood.formats.ocdbt.values import MAX_TREE_BYTES
from cordwood.formats.packs import cordwood_json, parse_item
from cordwood.formats.safetensors import plan_file
from cordwood.formats.safetensors.dtype_codes import CODES, stored_dtype
from cordwood.formats.safetensors.read_header import MAX_HEADER_BYTES
from cordwood.formats.zarr import array_paths, array_reader, zarr_dtypes
from cordwood.formats.zarr import plan_item as zarr_layout
from cordwood.formats.zarr import tensorstore_index as zarr_index
from cordwood.index import MAX_DEPTH
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.object_stores.object_pool import GRACE_SECONDS
from cordwood.storage.object_stores.object_storage import ObjectStorage
from tests.golden.orbax_checkpoints import WRITTEN_BY

DOCS = Path(__file__).parent.parent.parent / "docs"
DESIGN = (DOCS / "design" / "0002-directories.md").read_text()
TEXT = (Path(__file__).parent.parent.parent / "docs" / "format.md").read_text()


def test_the_dtype_table_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([^|]+) \| (\w+) \|$", TEXT, re.MULTILINE)
    expected = []
    for row in DTYPES.values():
        stored = stored_dtype(row.name)
        code = (
            f"{stored.code}, shape + {list(stored.extra_shape)}"
            if stored.extra_shape
            else stored.code
        )
        expected.append((row.name, str(row.itemsize), code, row.name))
    assert rows == expected


def test_every_code_of_the_format_is_listed() -> None:
    cells = re.findall(r"\b[A-Z]+[0-9]*(?:_[A-Z0-9]+)?\b", TEXT)
    assert set(CODES) <= set(cells)


def test_the_format_page_states_the_limits_of_the_code() -> None:
    assert f"{MAX_HEADER_BYTES:,} bytes (`MAX_HEADER_BYTES`)" in TEXT
    assert f"longer than {MAX_NAME_BYTES} bytes" in TEXT
    assert f"begins at a multiple of {plan_file.DATA_ALIGNMENT}" in TEXT
    assert f"more than {plan_file.INLINE_BYTES} bytes" in TEXT
    assert f"`{HEADER_START}`" in TEXT
    assert f"{tile_grid.TILE_BYTES >> 20} MiB (`TILE_BYTES`;" in TEXT
    assert tile_grid.MAX_TILES == 2**20
    assert f"{tile_encoding.MAX_TILE_BYTES >> 20} MiB (`MAX_TILE_BYTES`)" in TEXT
    assert f"bytes {8 + len(HEADER_START)} to {40 + len(HEADER_START)}" in TEXT
    assert f"At most {MAX_DEPTH} levels" in TEXT
    assert f"at most {MAX_KEY_DEPTH} deep" in TEXT
    assert f"| `{VERSION_KEY}` | `{VERSION}` |" in TEXT


def test_limits_and_constants_of_the_zarr_layout() -> None:
    assert f"longer than {array_paths.MAX_COMPONENT_BYTES} bytes" in TEXT
    assert f"longer than {array_paths.MAX_PATH_BYTES} bytes" in TEXT
    raw, compressed = (zarr_layout.MAX_CHUNK_BYTES[name] >> 20 for name in (None, "zstd"))
    assert f"more than {raw} MiB ({compressed} MiB compressed)" in TEXT
    assert zarr_layout.MAX_CHUNK_BYTES["blosc"] >> 20 == compressed
    assert f"`version` (`{zarr_index.VERSION}`), `items` and `digest`" in TEXT
    for name in zarr_dtypes.EXTENSIONS:
        assert name in TEXT


def test_limits_of_orbax_checkpoints() -> None:
    assert f"2^{MAX_NODE_BYTES.bit_length() - 1}\nbytes each (`MAX_NODE_BYTES`)" in TEXT
    assert f"2^{MAX_TREE_BYTES.bit_length() - 1} together (`MAX_TREE_BYTES`)" in TEXT
    assert (
        f"2^{array_reader.MAX_UNSTORED_CHUNKS.bit_length() - 1} chunks of an array may be" in TEXT
    )
    assert f"2^{array_reader.MAX_SHARD_INDEX_BYTES.bit_length() - 1} bytes (`MAX_SHARD_I" in TEXT
    assert f"2^{MAX_KEY_BYTES.bit_length() - 1} bytes\n(`MAX_KEY_BYTES`)" in TEXT
    golden = DOCS.parent / "tests" / "foreign_files" / "golden"
    versions = {each.name.removeprefix("orbax-") for each in golden.glob("orbax-*")}
    assert WRITTEN_BY in versions
    listed = re.search(r"Those of ([\d., and]+) are among the\s+golden files", TEXT)
    assert listed is not None
    assert set(re.findall(r"\d[\d.]+\d", listed[1])) == versions


def test_limits_of_numpy_files() -> None:
    assert read_eqx.MAX_ARRAYS == 1 << 20
    assert "2^20\n(`MAX_ARRAYS`)" in TEXT
    assert f"{npy_header.MAX_HEADER_BYTES:,} bytes\n(`MAX_HEADER_BYTES`)" in TEXT
    assert f"{MAX_RATIO} times\n(`MAX_RATIO`)" in TEXT


def test_limits_and_constants_of_packs() -> None:
    empty = cordwood_json.encode_index({}).decode()
    start, _, rest = empty.partition(f"{json.loads(empty)['digest']}")
    assert f"{start}<32 hexadecimal digits>{rest.removesuffix('}}')}" in TEXT
    assert f"stand at bytes {len(start)} to {len(start) + 32}" in TEXT
    assert f"{cordwood_json.MAX_INDEX_BYTES:,} bytes\n(`MAX_INDEX_BYTES`)" in TEXT
    for limit in ("MAX_CUTS", "MAX_CELLS", "FREE_LEAVES"):
        power = getattr(parse_item, limit).bit_length() - 1
        assert getattr(parse_item, limit) == 1 << power
        assert re.search(rf"2\^{power}\s(cuts|cells|leaves)\s\(`{limit}`\)", TEXT)
    for member in parse_item.MEMBERS:
        assert f"`{member}`" in TEXT
    assert f"at most {LocalStorage.file_sizes.max_packs}" in DESIGN
    for size in (ObjectStorage.file_sizes.pack_bytes, ObjectStorage.file_sizes.part_bytes):
        assert size is not None
        assert f"{size >> 20} MiB" in TEXT
    assert f"{GRACE_SECONDS // 3600} hours" in TEXT
