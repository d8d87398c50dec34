"""The index of a safetensors file, and the digests of a file that a directory lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import eq
from typing import NamedTuple, TypeVar

from cordwood.encoding.cordwood_metadata import (
    DATA_DIGESTS,
    STRUCTURE,
    check_header,
    decode_digests,
    split_metadata,
)
from cordwood.encoding.cordwood_structure import LeafTable, parse_structure
from cordwood.encoding.digests import check_coverage
from cordwood.encoding.json_leaf_types import BYTE_KINDS, LeafType
from cordwood.encoding.tensor_names import dotted_name, dotted_names
from cordwood.errors import FormatError
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.read_header import read_header
from cordwood.formats.safetensors.tensors import Tensors, TensorType, tensor_table
from cordwood.index import (
    LEAF,
    Encoding,
    Index,
    Inline,
    Leaf,
    LeafKind,
    Node,
    Piece,
    Pieces,
    Source,
    Span,
    leaf_paths,
)
from cordwood.io.open_files import ReadableFile, naming
from cordwood.keypath import KeyPath
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "safetensors"

_T = TypeVar("_T")
_new = tuple.__new__
_PLACEHOLDER = Leaf((), "numpy", (), "", Inline(None))


class _LeafForm(NamedTuple):
    """The properties that leaves share if they differ only in path and offset."""

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    prng_impl: str | None
    encoding: Encoding
    span: Span
    length: int  # in bytes


def read_index(file: ReadableFile) -> Index:
    """Read the index of a safetensors file.

    The index of a file that cordwood wrote has the tree, exact key paths and digests; the header is
    verified here. Any other file becomes a flat dict of numpy arrays under the names of the
    tensors, in the order of the header. `Index.metadata` is the user's part of `__metadata__`.

    Raises:
        FormatError: it is not a safetensors file; the message names the byte or the tensor.
        TruncatedError: it ends too early.
        CorruptionError: cordwood wrote it, and its header has changed since.
        UnsupportedFormatError: a newer cordwood wrote it.
    """
    with naming(file.name), gc_paused():
        return _read_index(file)


def _read_index(file: ReadableFile) -> Index:
    header = read_header(file)
    metadata, cordwood = split_metadata(header.metadata)
    if cordwood is not None:
        check_header(header.raw)
    tensors = header.tensors
    if tensors is None:
        tensors = tensor_table(header.entries, header.raw, size_bytes=file.size_bytes)
    if cordwood is None:
        return _foreign(file, tensors, metadata)
    digests = decode_digests(cordwood[DATA_DIGESTS], len(header.raw))
    check_coverage("the data", file.size_bytes, digests)
    table = parse_structure(cordwood[STRUCTURE], tensor_count=len(tensors.names))
    return Index(
        FORMAT,
        table.structure,
        tuple(_leaves(table, tensors)),
        (Source(file.name, file.size_bytes, digests),),
        "exact",
        metadata,
    )


def _foreign(file: ReadableFile, tensors: Tensors, metadata: dict[str, str]) -> Index:
    forms = [
        _new(_LeafForm, ("numpy", shape, dtype, False, None, encoding, span, length))
        for _, shape, dtype, encoding, span, length in tensors.types
    ]
    leaves = _make_leaves(zip(tensors.names), forms, tensors.offsets)
    structure = (Node("dict", len(leaves), tuple(tensors.names)), *[LEAF] * len(leaves))
    source = Source(file.name, file.size_bytes)
    return Index(FORMAT, structure, tuple(leaves), (source,), "dotted", metadata)


def _leaves(table: LeafTable, tensors: Tensors) -> list[Leaf]:
    paths = leaf_paths(table.structure)
    if all(table.types[number].tensor for number, _ in table.runs):
        return _tensor_leaves(table, tensors, paths, range(len(paths)))
    members: list[int] = []
    leaves: list[Leaf] = []
    values = iter(table.values)
    for number, length in table.runs:
        run = range(len(leaves), len(leaves) + length)
        if table.types[number].tensor:
            members += run
            leaves += [_PLACEHOLDER] * length
        else:
            kind = table.types[number].kind
            leaves += [Leaf(paths[i], kind, (), "", Inline(next(values))) for i in run]
    for i, leaf in zip(members, _tensor_leaves(table, tensors, paths, members), strict=True):
        leaves[i] = leaf
    return leaves


def _tensor_leaves(
    table: LeafTable, tensors: Tensors, paths: list[KeyPath], members: Sequence[int]
) -> list[Leaf]:
    """Return the leaves at positions `members`, each with the tensor of its name."""
    order = _tensor_order(table, tensors, paths, members)
    types = iter(_select(tensors.types, order))
    # Of each leaf type: the form, by the id of a shared tensor type.
    cache: list[dict[int, _LeafForm]] = [{} for _ in table.types]
    forms: list[_LeafForm] = []
    for number, length in table.runs:
        if not table.types[number].tensor:
            continue
        forms_by_id = cache[number]
        for type_ in islice(types, length):
            form = forms_by_id.get(id(type_))
            if form is None:
                name = tensors.names[order[len(forms)]]
                form = forms_by_id[id(type_)] = _form(table.types[number], type_, name)
            forms.append(form)
    return _make_leaves(_select(paths, members), forms, _select(tensors.offsets, order))


def _select(items: list[_T], positions: Sequence[int]) -> list[_T]:
    if positions == range(len(items)):
        return items
    return [items[i] for i in positions]


def _tensor_order(
    table: LeafTable, tensors: Tensors, paths: list[KeyPath], members: Sequence[int]
) -> Sequence[int]:
    """Return the positions in the file of the tensors of the members, each used once."""
    count = len(members)
    if all(map(eq, _names(table, paths, members), tensors.names)):
        return range(count)
    unclaimed = dict(zip(tensors.names, range(count), strict=True))
    try:
        return list(map(unclaimed.pop, _names(table, paths, members)))
    except KeyError as e:
        raise FormatError(
            f"cordwood.structure: leaf {members[count - len(unclaimed)]} is the tensor "
            f"{e.args[0]!r:.200}, which the file lacks or another leaf has"
        ) from None


def _names(table: LeafTable, paths: list[KeyPath], members: Sequence[int]) -> Iterator[str]:
    changed = table.names
    if changed:
        return (changed[i] if i in changed else dotted_name(paths[i]) for i in members)
    return dotted_names(_select(paths, members))


def _make_leaves(
    paths: Iterable[KeyPath], forms: list[_LeafForm], offsets: Iterable[int]
) -> list[Leaf]:
    """Return the leaves at `offsets`. Works on columns: no line of Python runs per leaf."""
    if not forms:
        return []
    kinds, shapes, dtypes, weak_types, impls, encodings, spans, lengths = zip(*forms, strict=True)
    pieces = map(_new, repeat(Piece), zip(spans, repeat(0), offsets, lengths))
    storages = map(_new, repeat(Pieces), zip(zip(pieces), encodings, strict=True))
    columns = zip(paths, kinds, shapes, dtypes, storages, weak_types, impls, strict=True)
    return list(map(_new, repeat(Leaf), columns))


def _form(leaf_type: LeafType, stored: TensorType, name: str) -> _LeafForm:
    _, shape, dtype, encoding, span, length = _leaf_tensor_type(leaf_type, stored, name)
    weak_type, impl = leaf_type.weak_type, leaf_type.prng_impl
    return _LeafForm(leaf_type.kind, shape, dtype, weak_type, impl, encoding, span, length)


def _leaf_tensor_type(leaf_type: LeafType, stored: TensorType, name: str) -> TensorType:
    """Return the type of a tensor as seen by its leaf. Raises FormatError if they do not fit."""
    fits = stored.encoding == "raw"  # cordwood writes no packed elements
    result = stored
    if leaf_type.dtype:
        extra = stored_dtype(leaf_type.dtype).extra_shape
        shape = stored.shape[: len(stored.shape) - len(extra)]
        fits = stored_dtype(leaf_type.dtype).is_substitute and stored.code == "U8"
        fits = fits and shape + extra == stored.shape
        span = Span(0, math.prod(shape))
        result = stored._replace(shape=shape, dtype=leaf_type.dtype, span=span)
    if leaf_type.kind == "numpy_scalar":
        fits = fits and result.shape == ()
    elif leaf_type.kind == "prng_key":
        fits = fits and result.dtype == "uint32" and result.shape != ()
    elif leaf_type.kind in BYTE_KINDS:
        fits = fits and result.dtype == "uint8" and len(result.shape) == 1
    if not fits:
        what = f"{leaf_type.kind} {leaf_type.dtype}".rstrip()
        raise FormatError(
            f"cordwood.structure: tensor {name!r:.200}: {stored.code}{list(stored.shape)} cannot "
            f"hold a leaf of type {what}"
        )
    return result
