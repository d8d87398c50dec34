"""The plan of the msgpack bytes of a state dict, as Flax writes them.

Arrays are not copied: the plan refers to ranges of their elements. An array of more than
`MAX_CHUNK_SIZE` bytes becomes a dict of flat chunks as in Flax, in the positions where Flax looks
for one: at the root, and in dicts that are inside dicts only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from cordwood import dtypes
from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.formats.flax_msgpack import wire
from cordwood.formats.flax_msgpack.chunk_size import max_chunk_size
from cordwood.formats.flax_msgpack.unsupported_values import (
    UnsupportedArrayError,
    UnsupportedIntegerError,
    UnsupportedTextError,
    unsupported_value_error,
)
from cordwood.keypath import DictKey, Key, KeyPath
from cordwood.plan.file_plan import FilePlan, LeafBytes, LiteralBytes, Segment
from cordwood.state_dict.state_errors import error_text
from cordwood.state_dict.state_path import state_key_path
from cordwood.tree.leaves import DeferredArray, is_jax_array, name_of_path, without_padding

_new = tuple.__new__
_BIG_BYTES = 4096  # bytes objects of this size or more are not copied into the plan
# The remaining items, whether they are items of a dict, and whether Flax chunks arrays here.
_Iteration = tuple[Iterator[Any], bool, bool]


class _Planner:
    def __init__(
        self, sort_keys: bool, problems: list[UnsupportedLeafError | LimitError] | None
    ) -> None:
        self.max_chunk_size = max_chunk_size()
        self.sort_keys = sort_keys
        self.problems = problems
        self.size_bytes = 0
        self.packer = msgpack.Packer()
        self.out = bytearray()  # headers that are not yet in a segment
        self.segments: list[Segment] = []
        self.leaves: list[object] = []
        self.heads: dict[tuple[int, tuple[int, ...], str], bytes] = {}
        self.names: dict[np.dtype[Any], str] = {}
        self.path: list[Key] = []
        self.stack: list[_Iteration] = []

    def flush(self) -> None:
        if self.out:
            self.segments.append(_new(LiteralBytes, (bytes(self.out),)))
            self.size_bytes += len(self.out)
            self.out.clear()

    def key_path(self) -> KeyPath:
        return state_key_path(self.path)

    def report(self, error: UnsupportedLeafError | LimitError) -> None:
        if self.problems is None:
            raise error
        self.problems.append(error)

    def refuse(self, problem: str, kind: type[UnsupportedLeafError] = UnsupportedLeafError) -> None:
        self.report(kind(f"{name_of_path(self.key_path())}: {problem}"))

    def walk(self, state: object) -> None:
        stack, path = self.stack, self.path
        self.value(state, chunkable=True)
        while stack:
            items, of_dict, chunkable = stack[-1]
            item: tuple[Any, Any] | None = next(items, None)
            if item is None:
                stack.pop()
                path.pop()
                continue
            key, value = item
            if of_dict:
                path[-1] = key if type(key) is str else DictKey(key)
                self.key(key)
            else:
                path[-1] = key
            self.value(value, chunkable=chunkable)

    def push(self, items: Iterator[Any], *, of_dict: bool, chunkable: bool) -> None:
        if self.has_room_for(1):
            self.stack.append((items, of_dict, chunkable))
            self.path.append("")

    def has_room_for(self, containers: int) -> bool:
        if len(self.stack) + containers <= wire.MAX_DEPTH:
            return True
        path = name_of_path(self.key_path())
        self.report(
            LimitError(
                f"the tree nests deeper than {wire.MAX_DEPTH} containers, the most that "
                f"msgpack reads (at {path[:80]}...); a container may hold itself"
            )
        )
        return False

    def value(self, value: object, *, chunkable: bool) -> None:
        try:
            self.write(value, chunkable=chunkable)
        except Exception as e:  # from an object whose attributes raise
            if self.problems is None:
                raise
            self.refuse(error_text(e))

    def write(self, value: Any, *, chunkable: bool) -> None:
        kind = type(value)
        if kind is np.ndarray:
            self.array(value, chunkable=chunkable)
        elif kind is dict:
            self.mapping(value, chunkable)
        elif kind is list:
            self.out += self.packer.pack_array_header(len(value))
            self.push(iter(enumerate(value)), of_dict=False, chunkable=False)
        elif isinstance(value, np.generic):
            self.scalar(value)
        elif _is_array(value):
            self.array(value, chunkable=chunkable)
        elif not self.atom(value, kind):
            self.report(unsupported_value_error(self.key_path(), value))

    def mapping(self, value: dict[Any, Any], chunkable: bool) -> None:
        if wire.CHUNKED_MARKER in value:
            path = name_of_path((*self.key_path(), wire.CHUNKED_MARKER))
            self.report(
                UnsupportedLeafError(
                    f"{path}: a dict with this key reads as a chunked array, not as a dict; "
                    "rename the key"
                )
            )
        items: Any = value.items()
        if self.sort_keys:
            try:
                items = [(key, value[key]) for key in sorted(value)]
            except TypeError:
                items = value.items()  # keys that cannot be compared stay in their order
        self.out += self.packer.pack_map_header(len(value))
        self.push(iter(items), of_dict=True, chunkable=chunkable)

    def key(self, key: Any) -> None:
        kind = type(key)
        if isinstance(key, np.generic):
            self.scalar(key)
        elif not self.atom(key, kind) or kind in (bytearray, memoryview):
            self.refuse(
                f"a dict key of type {kind.__module__}.{kind.__qualname__} cannot be stored; "
                "convert it to str"
            )

    def atom(self, value: Any, kind: type) -> bool:
        """Write a value that is not an array; return False if the type is not supported."""
        if value is None or kind is str or kind is int or kind is float or kind is bool:
            self.basic(value)
        elif kind is bytes or kind is bytearray or kind is memoryview:
            self.binary(value)
        elif isinstance(value, complex):
            numbers = self.packer.pack((value.real, value.imag))
            self.out += self.packer.pack(msgpack.ExtType(wire.EXT_COMPLEX, numbers))
        elif kind is msgpack.Timestamp or (
            kind is msgpack.ExtType and not wire.EXT_ARRAY <= value.code <= wire.EXT_TUPLE
        ):  # an unknown extension, as an earlier read returned it
            self.out += self.packer.pack(value)
        else:
            return False
        return True

    def basic(self, value: str | float | None) -> None:
        try:
            self.out += self.packer.pack(value)
        except OverflowError:
            assert isinstance(value, int)
            self.refuse(
                f"an int of {value.bit_length()} bits cannot be stored: msgpack's range is "
                "[-2**63, 2**64); store it as a str, or save as .safetensors",
                UnsupportedIntegerError,
            )
        except UnicodeEncodeError as e:
            self.refuse(
                f"a str with the lone surrogate {e.object[e.start]!r} cannot be stored in msgpack, "
                "whose strings are UTF-8; store its bytes, or save as .safetensors",
                UnsupportedTextError,
            )

    def binary(self, value: bytes | bytearray | memoryview) -> None:
        view = memoryview(value)
        if view.nbytes > wire.MAX_LENGTH:
            self.refuse(
                f"{view.nbytes} bytes are more than the {wire.MAX_LENGTH} that msgpack can hold; "
                "store a uint8 array in a dict"
            )
            return
        self.out += wire.bin_header(view.nbytes)
        if view.nbytes < _BIG_BYTES:
            self.out += view.tobytes()
        else:
            data = view if view.c_contiguous else view.tobytes()
            self.leaf_bytes(np.frombuffer(data, np.uint8), 0, view.nbytes)

    def scalar(self, value: np.generic) -> None:
        name = self.dtype_name(value, value.dtype)
        if name is not None and self.head(wire.EXT_SCALAR, (), name, value.dtype.itemsize):
            self.out += without_padding(np.asarray(value)).tobytes()

    def array(self, value: Any, *, chunkable: bool) -> None:
        shape, dtype = value.shape, value.dtype
        name = self.names.get(dtype) or self.dtype_name(value, dtype)
        if name is None:
            return
        nbytes = math.prod(shape) * dtype.itemsize
        if chunkable and nbytes > self.max_chunk_size:
            self.chunks(value, shape, dtype.itemsize, name)
        elif self.head(wire.EXT_ARRAY, shape, name, nbytes):
            self.leaf_bytes(value, 0, nbytes)

    def head(self, code: int, shape: tuple[int, ...], name: str, nbytes: int) -> bool:
        """Write all of an array or scalar but its elements; return False if it is too large."""
        head = self.heads.get((code, shape, name))
        if head is None:
            pack = self.packer.pack
            payload = b"\x93" + pack(shape) + pack(name)  # of three values, the last of bytes
            if nbytes <= wire.MAX_LENGTH:
                payload += wire.bin_header(nbytes)
            length = len(payload) + nbytes
            if length > wire.MAX_LENGTH:
                self.refuse(
                    f"an array of {nbytes} bytes does not fit one msgpack extension, which holds "
                    f"{wire.MAX_LENGTH}, and Flax splits no arrays in lists and none up to "
                    "MAX_CHUNK_SIZE; put it in a dict, lower MAX_CHUNK_SIZE, or save as "
                    ".safetensors",
                    UnsupportedArrayError,
                )
                return False
            head = self.heads[code, shape, name] = wire.ext_header(code, length) + payload
        self.out += head
        return True

    def chunks(self, value: Any, shape: tuple[int, ...], itemsize: int, name: str) -> None:
        if not self.has_room_for(2):
            return
        size = math.prod(shape)
        step = max(1, int(self.max_chunk_size / itemsize))
        starts = range(0, size, step)
        out, pack, map_header = self.out, self.packer.pack, self.packer.pack_map_header
        out += map_header(3) + pack(wire.CHUNKED_MARKER) + pack(True)
        out += pack("shape") + pack({f"{axis}": length for axis, length in enumerate(shape)})
        out += pack("chunks") + map_header(len(starts))
        for i, start in enumerate(starts):
            count = min(step, size - start)
            out += pack(f"{i}")
            if not self.head(wire.EXT_ARRAY, (count,), name, count * itemsize):
                return
            self.leaf_bytes(value, start * itemsize, (start + count) * itemsize)

    def leaf_bytes(self, value: object, start: int, stop: int) -> None:
        """Add bytes start to stop of the elements of an array; its first ones come first."""
        if stop > start:
            self.flush()
            if not start:
                self.leaves.append(value)
            self.segments.append(_new(LeafBytes, (len(self.leaves) - 1, start, stop, None)))
            self.size_bytes += stop - start

    def dtype_name(self, value: object, dtype: object) -> str | None:
        if isinstance(dtype, np.dtype):
            try:
                name = self.names[dtype] = dtypes.name_of(dtype)
            except TypeError:
                pass
            else:
                return name
        self.report(unsupported_value_error(self.key_path(), value))
        return None


def _is_array(value: Any) -> bool:
    """Return whether a value is an array whose elements can be read."""
    if type(value) is DeferredArray or isinstance(value, np.ndarray):
        return not isinstance(value, np.ma.MaskedArray)
    if not is_jax_array(value) or isinstance(value, sys.modules["jax"].core.Tracer):
        return False
    return not value.is_deleted() and (value.is_fully_addressable or value.is_fully_replicated)


def plan_state(
    state: object,
    *,
    sort_keys: bool = False,
    problems: list[UnsupportedLeafError | LimitError] | None = None,
) -> tuple[FilePlan, tuple[Any, ...]]:
    """Plan the msgpack bytes of a state dict.

    Args:
        state: nested dicts and lists of numpy and jax arrays, numpy scalars, Python scalars, str,
            bytes and None.
        sort_keys: whether dicts are written in the order of their keys, as jax flattens them, if
            the keys can be compared.
        problems: a list to which errors are appended. None: the first error is raised.

    Returns:
        The plan, and the arrays to which its LeafBytes refer by position.

    Raises:
        UnsupportedLeafError: a value cannot be stored; the message names its key path.
        LimitError: containers nest deeper than 1024.
    """
    planner = _Planner(sort_keys, problems)
    planner.walk(state)
    planner.flush()
    return FilePlan(planner.size_bytes, tuple(planner.segments)), tuple(planner.leaves)
