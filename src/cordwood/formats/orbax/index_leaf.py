"""A leaf of a tree of Orbax: an array, a scalar, a string or a PRNG key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood import dtypes
from cordwood.errors import CorruptionError, FormatError, LimitError
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import LeafMetadata
from cordwood.formats.zarr.array_metadata import codec_of
from cordwood.formats.zarr.array_reader import ArrayReader, StoredArray, array_storage
from cordwood.formats.zarr.key_values import KeyValues, ValueLocation
from cordwood.index import Inline, Leaf
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.open_files import naming
from cordwood.plan.load_plan import EncodedChunk, Scatter

MAX_ELEMENT_BYTES = 1 << 16  # of a chunk that holds one element
# The dtypes that Python numbers are stored in; a scalar of any other dtype was a numpy scalar.
_NUMBERS: Mapping[str, Any] = {"bool": bool, "int64": int, "float64": float}
# The number of uint32 words in one PRNG key, for the known implementations.
_KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


def index_leaf(
    stored: LeafMetadata,
    reader: ArrayReader,
    values: KeyValues,
    strings: Mapping[str, str],
    key_impl: str | None,
) -> Leaf:
    """Return a leaf with the places of its bytes.

    Args:
        stored: its entry in the metadata of the tree.
        reader: a reader of the arrays.
        values: the values that hold the arrays.
        strings: the values of leaves that are strings.
        key_impl: the implementation of a PRNG key; None: it is no key.

    Raises CorruptionError, FormatError and LimitError.
    """
    path, name, value_type, _ = stored
    if value_type == "string":
        if name not in strings:
            raise CorruptionError(f"{STRINGS_NAME} does not have it: the checkpoint is incomplete")
        return Leaf(path, "str", (), "", Inline(strings[name]))
    file, data = reader.read_metadata(name)
    with naming(file):
        metadata = reader.parse(file, data)
    array = StoredArray(metadata, reader.pieces(name, metadata))
    shape, dtype = metadata.shape, metadata.dtype
    storage = array_storage(array, len(shape))
    if key_impl is not None:
        if dtype != "uint32" or not shape or _KEY_WORDS.get(key_impl, shape[-1]) != shape[-1]:
            raise FormatError(
                f"an array of {dtype}{list(shape)} cannot hold PRNG keys of {key_impl!r:.40}"
            )
        return Leaf(path, "prng_key", shape, dtype, storage, prng_impl=key_impl)
    if value_type == "scalar":
        if shape:
            raise FormatError(f"an array of shape {list(shape)} is not a scalar")
        number = _NUMBERS.get(dtype)
        if number is None:
            return Leaf(path, "numpy_scalar", shape, dtype, storage)
        return Leaf(path, number.__name__, (), "", Inline(number(_element(array, values))))
    return Leaf(path, "jax" if value_type == "jax.Array" else "numpy", shape, dtype, storage)


def _element(array: StoredArray, values: KeyValues) -> Any:
    """Return the only element of an array of shape () as a numpy scalar."""
    import numpy as np

    from cordwood.io.chunk_codecs import decode_chunk

    metadata, (piece,) = array
    _, source, offset, length = piece
    if length > MAX_ELEMENT_BYTES:
        raise LimitError(
            f"a number in {length} bytes; expected at most {MAX_ELEMENT_BYTES} (MAX_ELEMENT_BYTES)"
        )
    data = values.read(ValueLocation(source, offset, length), 0, length)
    spread = Scatter((), dtypes.itemsize(metadata.dtype), ())
    chunk = EncodedChunk(source, offset, length, codec_of(metadata), metadata.dtype, spread)
    raw = decode_chunk(chunk, memoryview(data), ScratchBuffer(), name=values.sources[source].name)
    return np.frombuffer(raw, dtypes.to_numpy(metadata.dtype))[0]
