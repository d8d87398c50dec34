"""The index of a Flax msgpack file, from one pass over the headers; elements are not read.

The reader accepts everything that Flax and Orbax write, and what they accept from other writers:
any length class of a header, other names of dtypes, big-endian elements, a dimension of -1, keys of
any scalar type.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.flax_msgpack import wire
from cordwood.formats.flax_msgpack.array_header import read_array_header
from cordwood.formats.flax_msgpack.byte_window import ByteWindow
from cordwood.formats.flax_msgpack.join_chunks import join_chunks
from cordwood.formats.flax_msgpack.wire import Token, decode_text, read_token, trailing_bytes_error
from cordwood.index import (
    LEAF,
    Encoding,
    Index,
    Inline,
    Leaf,
    LeafKind,
    Node,
    NodeKind,
    Piece,
    Pieces,
    Source,
    Span,
)
from cordwood.io.open_files import ReadableFile, unchanged_during
from cordwood.keypath import DictKey, KeyPath
from cordwood.message_text import counted

_NONE = Node("none")
_INLINE_KINDS: dict[str, LeafKind] = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "bin": "bytes",
}
# The payload length, the shape, the dtype, the encoding and the span of an array.
_ArrayInfo = tuple[int, tuple[int, ...], str, Encoding, Span]
MAX_NODES = 1 << 22
MAX_PATH_KEYS = 1 << 22  # in all key paths together, plus one for every four bytes of the file
_AHEAD_BYTES = 512  # in the window at each entry: a short key, and the usual header of an array
_MAX_HEADERS = 4096  # array headers that are cached
_ext16 = struct.Struct(">Hb").unpack_from
_ext32 = struct.Struct(">Ib").unpack_from
_new = tuple.__new__  # the constructor of a named tuple takes twice as long


def read_index(file: ReadableFile) -> Index:
    """Read the index of a Flax msgpack file.

    Raises:
        TruncatedError: the file ends too early.
        LimitError: containers nest deeper than 1024, or an array has more than 64 dimensions.
        FormatError: it is not Flax's msgpack; the message names the byte offset.
    """
    with unchanged_during(file) as read:
        nodes, leaves = read_value(ByteWindow(read, stop=file.size_bytes, name=file.name))
    sources = (Source(file.name, file.size_bytes),)
    return Index("msgpack", tuple(nodes), tuple(leaves), sources, "strings")


def read_value(window: ByteWindow) -> tuple[list[Node], list[Leaf]]:
    """Return the nodes and leaves of the only value in a window. Raises as `read_index`."""
    return _Reader(window).run()


@dataclass(slots=True, eq=False)
class _Frame:
    """A container that is being read."""

    kind: NodeKind
    size: int
    path: KeyPath
    pos: int
    node: int
    first_leaf: int
    chunkable: bool  # True where Flax looks for chunked arrays
    stop: int | None  # the end of the extension of a tuple
    position: int = 0  # the number of children begun so far
    keys: dict[Any, None] = field(default_factory=dict)
    plain: bool = True  # True while all keys are str


class _Reader:
    def __init__(self, window: ByteWindow) -> None:
        self.window = window
        self.name = window.name
        self.nodes: list[Node] = []
        self.leaves: list[Leaf] = []
        self.stack: list[_Frame] = []
        self.path_keys = 0
        # Cached array headers, by the bytes of an extension before its elements.
        self.headers: dict[bytes, _ArrayInfo] = {}
        # By the length of an extension: the bytes before its elements.
        self.header_lengths: dict[int, int] = {}

    def run(self) -> tuple[list[Node], list[Leaf]]:
        stack = self.stack
        end = self.window.stop
        pos = self.value(self.window.start, (), True)
        while stack:
            frame = stack[-1]
            if frame.position == frame.size:
                self.close(frame, pos)
                stack.pop()
            elif frame.kind == "dict":
                pos = self.entries(frame, pos)
            else:
                pos = self.elements(frame, pos)
        if pos != end:
            raise trailing_bytes_error(self.window, pos)
        return self.nodes, self.leaves

    def elements(self, frame: _Frame, pos: int) -> int:
        """Read the remaining elements of a list or tuple, up to the next container in it."""
        stack, path = self.stack, frame.path
        while frame.position < frame.size and stack[-1] is frame:
            frame.position += 1
            pos = self.value(pos, (*path, frame.position - 1), False)
        return pos

    def entries(self, frame: _Frame, pos: int) -> int:
        """Read the remaining entries of a dict and the dicts around it, up to a list or tuple.

        Short keys and arrays with a cached header, which are nearly all entries, take no call.
        """
        window, stack, name, end = self.window, self.stack, self.name, self.window.stop
        nodes, leaves = self.nodes, self.leaves
        headers, header_lengths = self.headers, self.header_lengths
        key: Any
        while True:
            path, keys, chunkable = frame.path, frame.keys, frame.chunkable
            position, size = frame.position, frame.size
            data, base, limit = window.data, window.base, window.limit
            while position < size:
                position += 1
                if pos + _AHEAD_BYTES > limit < end:
                    window.load(pos, _AHEAD_BYTES)
                    data, base, limit = window.data, window.base, window.limit
                at = pos - base
                stop = pos + data[at] - 0x9F if pos < end else pos
                if pos < stop <= pos + 32 and stop <= end:  # a short str
                    try:
                        key = data[at + 1 : stop - base].decode()
                    except UnicodeDecodeError:
                        key = decode_text(window, pos + 1, stop)  # raises
                    key_path = (*path, key)
                else:
                    key, stop = self.key(pos)
                    window.locate(min(stop, end), _AHEAD_BYTES)
                    data, base, limit = window.data, window.base, window.limit
                    if type(key) is str:
                        key_path = (*path, key)
                    else:
                        key_path = (*path, DictKey(key))
                        frame.plain = False
                if key in keys:
                    raise FormatError(f"{name}: byte {pos}: a dict has the key {key!r:.80} twice")
                keys[key] = None
                at = stop - base
                if stop + 6 <= end:
                    byte = data[at]
                    if byte == 0xC8:
                        length, code = _ext16(data, at + 1)
                        start = stop + 4
                    elif byte == 0xC7:
                        length, code = data[at + 1], data[at + 2]
                        start = stop + 3
                    elif byte == 0xC9:
                        length, code = _ext32(data, at + 1)
                        start = stop + 6
                    else:
                        length = code = start = 0
                    header_length = header_lengths.get(length)
                    if header_length is not None and code == 1 and start + length <= end:
                        # A header that is not in the window is not equal to one that is cached.
                        array = headers.get(data[start - base : start - base + header_length])
                        if array is not None and array[0] == length:
                            pos = start + length
                            piece = _new(
                                Piece, (array[4], 0, start + header_length, length - header_length)
                            )
                            storage = _new(Pieces, ((piece,), array[3]))
                            nodes.append(LEAF)
                            leaves.append(
                                _new(
                                    Leaf,
                                    (key_path, "numpy", array[1], array[2], storage, False, None),
                                )
                            )
                            continue
                if stop < end and 0x80 <= data[at] < 0x90:  # a dict of less than 16
                    token = _new(Token, ("map", data[at] - 0x80, stop + 1, stop + 1))
                    self.open("dict", token, key_path, stop, chunkable, None)
                    pos = stop + 1
                    break
                pos = self.value(stop, key_path, chunkable)
                if stack[-1] is not frame:
                    break
                data, base, limit = window.data, window.base, window.limit
            frame.position = position
            if stack[-1] is frame:  # the dict is complete
                self.close(frame, pos)
                stack.pop()
                if not stack:
                    return pos
            frame = stack[-1]
            if frame.kind != "dict":
                return pos

    def value(self, pos: int, path: KeyPath, chunkable: bool) -> int:
        """Read a value, or the header of a container; return the offset after it."""
        token = read_token(self.window, pos)
        kind = token.kind
        if kind == "ext":
            return self.extension(token, pos, path)
        if kind == "map":
            self.open("dict", token, path, pos, chunkable, None)
        elif kind == "array":
            self.open("list", token, path, pos, False, None)
        elif kind == "nil":
            self.nodes.append(_NONE)
        else:
            self.inline(path, _INLINE_KINDS[kind], self.atom(token))
        return token.stop

    def atom(self, token: Token) -> Any:
        if token.kind == "str":
            return decode_text(self.window, token.start, token.stop)
        if token.kind == "bin":
            return self.window.bytes(token.start, token.stop)
        return token.value

    def inline(self, path: KeyPath, kind: LeafKind, value: object) -> None:
        self.nodes.append(LEAF)
        self.leaves.append(Leaf(path, kind, (), "", Inline(value)))

    def key(self, pos: int) -> tuple[Any, int]:
        """Read a dict key that is not a short str; return it and the offset after it."""
        token = read_token(self.window, pos)
        value: Any = None
        if token.kind in _INLINE_KINDS or token.kind == "nil":
            return self.atom(token), token.stop
        if token.kind == "ext" and token.value == wire.EXT_SCALAR:
            header = read_array_header(self.window, token.start, token.stop)
            if header.shape == ():
                import numpy as np

                dtype = dtypes.to_numpy(header.dtype)
                if header.encoding == "swapped":
                    dtype = dtype.newbyteorder(">")
                value = np.frombuffer(self.window.bytes(header.start, token.stop), dtype, 1)[0]
        elif token.kind == "ext" and token.value == wire.EXT_COMPLEX:
            value = self.complex(token)
        elif token.kind == "ext" and token.value not in (wire.EXT_ARRAY, wire.EXT_TUPLE):
            value = self.opaque(token, pos)
        if value is None:
            raise FormatError(
                f"{self.name}: byte {pos}: expected a dict key, found an array or container"
            )
        return value, token.stop

    def open(
        self,
        kind: NodeKind,
        token: Token,
        path: KeyPath,
        pos: int,
        chunkable: bool,
        stop: int | None,
    ) -> None:
        count = token.value
        remaining = self.window.stop - token.stop
        least = 2 * count if kind == "dict" else count
        if least > remaining:
            raise TruncatedError(
                f"{self.name}: byte {pos}: truncated: a {kind} of "
                f"{counted(count, 'entry', 'entries')} needs at least "
                f"{counted(least, 'more byte')}, found {remaining}"
            )
        if len(self.stack) >= wire.MAX_DEPTH:
            raise LimitError(
                f"{self.name}: byte {pos}: containers nest deeper than {wire.MAX_DEPTH}"
            )
        if len(self.nodes) + count > MAX_NODES:
            raise LimitError(f"{self.name}: byte {pos}: more than {MAX_NODES} values")
        self.path_keys += count * (len(path) + 1)
        limit = MAX_PATH_KEYS + (self.window.stop - self.window.start) // 4
        if self.path_keys > limit:
            raise LimitError(
                f"{self.name}: byte {pos}: key paths hold more than {limit} keys in all: "
                "too many values are nested too deeply"
            )
        frame = _Frame(kind, count, path, pos, len(self.nodes), len(self.leaves), chunkable, stop)
        self.stack.append(frame)
        self.nodes.append(Node(kind, count))

    def close(self, frame: _Frame, pos: int) -> None:
        if frame.stop is not None and pos != frame.stop:
            raise FormatError(
                f"{self.name}: byte {pos}: the extension of a tuple ends at byte {frame.stop}, "
                "not where its contents do"
            )
        if frame.kind != "dict" or not frame.size:
            return
        keys = tuple(frame.keys)
        if not frame.plain:
            keys = tuple([key if type(key) is str else DictKey(key) for key in keys])
        self.nodes[frame.node] = Node("dict", frame.size, keys)
        if frame.chunkable and frame.size == 3 and wire.CHUNKED_MARKER in frame.keys:
            nodes, leaves = self.nodes, self.leaves
            inner = nodes[frame.node :], leaves[frame.first_leaf :]
            leaf = join_chunks(frame.path, *inner, frame.pos, self.name)
            if leaf is not None:
                nodes[frame.node :] = [LEAF]
                leaves[frame.first_leaf :] = [leaf]

    def extension(self, token: Token, pos: int, path: KeyPath) -> int:
        code = token.value
        if code == wire.EXT_ARRAY or code == wire.EXT_SCALAR:
            self.array(token, path)
        elif code == wire.EXT_COMPLEX:
            self.inline(path, "complex", self.complex(token))
        elif code == wire.EXT_TUPLE:
            inner = read_token(self.window, token.start)
            if inner.kind != "array":
                raise FormatError(
                    f"{self.name}: byte {token.start}: expected the array of a tuple, "
                    f"found a value of kind {inner.kind}"
                )
            self.open("tuple", inner, path, pos, False, token.stop)
            return inner.stop
        else:
            self.inline(path, "opaque", self.opaque(token, pos))
        return token.stop

    def array(self, token: Token, path: KeyPath) -> None:
        _, code, start, stop = token
        header = read_array_header(self.window, start, stop)
        span = Span(0, math.prod(header.shape))
        if len(self.headers) < _MAX_HEADERS:
            prefix = self.window.bytes(start, header.start)
            self.header_lengths[stop - start] = len(prefix)
            self.headers[prefix] = stop - start, header.shape, header.dtype, header.encoding, span
        piece = Piece(span, 0, header.start, stop - header.start)
        kind: LeafKind = "numpy_scalar" if code == wire.EXT_SCALAR and not header.shape else "numpy"
        self.nodes.append(LEAF)
        storage = Pieces((piece,), header.encoding)
        self.leaves.append(Leaf(path, kind, header.shape, header.dtype, storage))

    def complex(self, token: Token) -> complex:
        window, name, start, stop = self.window, self.name, token.start, token.stop
        pos = start
        numbers = []
        if window.bytes(start, min(start + 1, stop)) == b"\x92":
            pos = start + 1
            for _ in range(2):
                if pos < stop:
                    part = read_token(window, pos)
                    if part.kind in ("float", "int"):
                        numbers.append(part.value)
                    pos = part.stop
        if len(numbers) != 2 or pos != stop:
            raise FormatError(f"{name}: byte {start}: expected the two floats of a complex number")
        return complex(*numbers)

    def opaque(self, token: Token, pos: int) -> object:
        """Return the msgpack library's value for an extension that Flax does not define."""
        import msgpack

        data = self.window.bytes(token.start, token.stop)
        try:
            if token.value == wire.EXT_TIMESTAMP:
                return msgpack.Timestamp.from_bytes(data)
            return msgpack.ExtType(token.value, data)
        except ValueError as e:
            raise FormatError(
                f"{self.name}: byte {pos}: extension {token.value} of "
                f"{counted(len(data), 'byte')} cannot be read: {e}"
            ) from e
