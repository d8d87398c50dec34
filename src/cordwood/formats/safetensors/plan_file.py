"""The plan of a safetensors file: its header, and the order of the tensors after it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from json.encoder import encode_basestring  # type: ignore[attr-defined, unused-ignore]
from typing import NamedTuple

from cordwood.encoding.cordwood_metadata import (
    CORDWOOD_PREFIX,
    DATA_DIGESTS,
    HEADER_START,
    STRUCTURE,
    VERSION,
    VERSION_KEY,
    check_metadata_strings,
    digest_width,
    encode_digests,
    finish_header,
)
from cordwood.encoding.cordwood_structure import encode_structure
from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.encoding.json_leaf_types import BYTE_KINDS, LeafType
from cordwood.encoding.json_values import VALUE_KINDS, encode_value
from cordwood.encoding.tensor_names import tensor_names
from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.read_header import MAX_HEADER_BYTES
from cordwood.index import MAX_DIMS, Digests, LeafSpec, Structure, leaf_paths
from cordwood.keypath import format_path
from cordwood.plan.file_plan import FilePlan, LeafBytes, LeafPart
from cordwood.plan.packs import data_order
from cordwood.threads.garbage_collector import gc_paused

DATA_ALIGNMENT = 4096  # of the data in the file: a mapping of it begins at a page
INLINE_BYTES = 4096  # a longer str or bytes is a tensor


# The plan of a file
_new = tuple.__new__


class _TensorForm(NamedTuple):
    """The properties that tensors of one kind, shape and dtype share."""

    leaf_type: int  # position in `types`
    sort_key: tuple[bool, int]  # see data_order
    entry: str  # the text in the header between the name and the offsets
    length: int  # in bytes


@gc_paused()
def plan_file(
    structure: Structure,
    specs: Sequence[LeafSpec],
    *,
    metadata: Mapping[str, str],
    parts: Sequence[LeafPart] | None = None,
) -> FilePlan:
    """Plan a safetensors file.

    The same arguments give the same bytes. The bytes of a long str are its UTF-8; lone surrogates
    are encoded like other characters.

    Args:
        structure: the containers, with one leaf for each of `specs`, in order.
        specs: the leaves. For a PRNG key array, shape and dtype are those of its key data.
        metadata: the user's strings, stored in `__metadata__` unchanged.
        parts: what `LeafBytes` of the plan name for each of `specs`. None: they are the leaves.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored in this format.
        LimitError: the header would exceed MAX_HEADER_BYTES, or the tree has too many nodes.
        ValueError, TypeError: `metadata` holds something that cannot be stored.
    """
    check_metadata(metadata)
    if parts is None:
        parts = [(leaf, None) for leaf in range(len(specs))]
    leaf_count = len(leaf_paths(structure))
    if leaf_count != len(specs):
        raise ValueError(f"a structure of {leaf_count} leaves, but {len(specs)} leaves given")
    tensors, tensor_forms, values, types, leaf_types = _group_leaves(specs)
    names, changed = tensor_names([specs[i].key_path for i in tensors])
    renamed = [(tensors[i], names[i]) for i in changed]
    table = encode_structure(structure, types, leaf_types, renamed, values)
    # In the order of the file; ties keep the order of leaves.
    order = sorted(range(len(tensors)), key=[form.sort_key for form in tensor_forms].__getitem__)
    forms = [tensor_forms[i] for i in order]
    ends = list(accumulate([form.length for form in forms], initial=0))
    offsets = list(map(str, ends))
    quoted = [encode_basestring(names[i]) for i in order]
    entries = [
        f",{name}{form.entry}{begin},{end}]}}"
        for name, form, begin, end in zip(quoted, forms, offsets, offsets[1:], strict=False)
    ]
    file_parts = [parts[tensors[i]] for i in order]
    segments = [
        _new(LeafBytes, (leaf, 0, form.length, box))
        for (leaf, box), form in zip(file_parts, forms, strict=True)
        if form.length
    ]
    head = f'{HEADER_START}{"0" * 32}","{VERSION_KEY}":"{VERSION}","{DATA_DIGESTS}":"'
    tail = "".join(
        [
            f'","{STRUCTURE}":{encode_basestring(table)}',
            *[f",{encode_basestring(k)}:{encode_basestring(v)}" for k, v in metadata.items()],
            "}",
            *entries,
            "}",
        ]
    )
    data_bytes = ends[-1]
    size = 8 + len(head) + digest_width(data_bytes) + len(tail.encode())
    header_bytes = -(-size // DATA_ALIGNMENT) * DATA_ALIGNMENT
    if header_bytes - 8 > MAX_HEADER_BYTES:
        raise LimitError(
            f"the header would take {header_bytes} bytes; readers of safetensors accept at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES): store fewer or larger leaves in one file"
        )
    make_header = partial(_make_header, head, tail, header_bytes, data_bytes)
    return FilePlan(header_bytes + data_bytes, tuple(segments), header_bytes, make_header)


def _make_header(
    head: str, tail: str, header_bytes: int, data_bytes: int, digests: Digests
) -> bytes:
    """Return the header of a file: its text with the digests between the head and the tail."""
    text = encode_digests(digests)
    expected = header_bytes, BLOCK_BYTES, digest_width(data_bytes)
    if (digests.start, digests.block_bytes, len(text)) != expected:
        raise ValueError(
            f"expected digests of {BLOCK_BYTES}-byte blocks of the {data_bytes} bytes from "
            f"byte {header_bytes} on, found {len(digests.values)} bytes of digests of "
            f"{digests.block_bytes}-byte blocks from byte {digests.start} on"
        )
    return finish_header(f"{head}{text}{tail}", header_bytes)


def _form(
    leaf_type: int, code: str, shape: tuple[int, ...], itemsize: int, length: int
) -> _TensorForm:
    entry = f':{{"dtype":"{code}","shape":[{",".join(map(str, shape))}],"data_offsets":['
    return _TensorForm(leaf_type, data_order(length, itemsize), entry, length)


def _group_leaves(
    specs: Sequence[LeafSpec],
) -> tuple[list[int], list[_TensorForm], list[object], list[LeafType], list[int]]:
    """Divide the leaves into tensors and values in the header.

    Returns the positions and the forms of the tensors; the other leaves, encoded; the types of
    leaves; and the position of each leaf's type among them.
    """
    tensors: list[int] = []
    forms: list[_TensorForm] = []
    values: list[object] = []
    numbers: dict[LeafType, int] = {}
    leaf_types: list[int] = []
    # Most leaves are of few types: the form is computed once for each type.
    cache: dict[tuple[object, ...], _TensorForm] = {}
    for i, spec in enumerate(specs):
        cache_key = spec[1:6]  # all but the path and the value
        form = cache.get(cache_key)
        if form is None and spec.kind in VALUE_KINDS:
            size = value_bytes(spec.value) if spec.kind in BYTE_KINDS else 0
            leaf_type = LeafType(spec.kind, size > INLINE_BYTES)
            number = numbers.setdefault(leaf_type, len(numbers))
            if not leaf_type.tensor:
                values.append(encode_value(spec.kind, spec.value))
                leaf_types.append(number)
                continue
            form = _form(number, "U8", (size,), 1, size)
        elif form is None:
            form = cache[cache_key] = _array_form(spec, numbers)
        tensors.append(i)
        forms.append(form)
        leaf_types.append(form.leaf_type)
    return tensors, forms, values, list(numbers), leaf_types


def _array_form(spec: LeafSpec, numbers: dict[LeafType, int]) -> _TensorForm:
    _, kind, shape, dtype, weak_type, impl, _ = spec
    if len(shape) >= MAX_DIMS or kind == "opaque":
        name = format_path(spec.key_path) or "the tree itself"
        problem = f"{len(shape)} dimensions; safetensors takes fewer than {MAX_DIMS} (MAX_DIMS)"
        if kind == "opaque":
            problem = "a value that only its original format understands cannot be stored here"
        raise UnsupportedLeafError(f"{name}: {problem}")
    code, itemsize, is_substitute, extra_shape = stored_dtype(dtype)
    leaf_type = LeafType(kind, True, dtype if is_substitute else "", weak_type, impl)
    number = numbers.setdefault(leaf_type, len(numbers))
    return _form(number, code, shape + extra_shape, itemsize, math.prod(shape) * itemsize)


def value_bytes(value: str | bytes) -> int:
    """Return the size of the array that holds a value."""
    return len(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError for user strings that cannot be stored."""
    check_metadata_strings(metadata)
    for key in metadata:
        if key.startswith(CORDWOOD_PREFIX):
            raise ValueError(
                f"metadata: {key!r:.80}: keys that begin with {CORDWOOD_PREFIX!r} are "
                "cordwood's own; choose another"
            )
