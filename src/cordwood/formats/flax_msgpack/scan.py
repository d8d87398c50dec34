"""From Flax's bytes to an index: one pass over the headers; what arrays hold is not touched.

Read is everything that Flax and Orbax write, and what they read of others: any length class of a
header, foreign names of dtypes, big-endian elements, a dimension of -1, keys of any scalar type.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from cordwood.engine.files import ReadableFile
from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.flax_msgpack import wire
from cordwood.formats.flax_msgpack.arrays import read_array_header
from cordwood.formats.flax_msgpack.chunked import joined
from cordwood.formats.flax_msgpack.tokens import Token, decode_text, read_token
from cordwood.index import Encoding, Index, Inline, Leaf, LeafKind, Piece, Pieces, Source, Span
from cordwood.keypath import DictKey, KeyPath
from cordwood.tree.structure import LEAF, Node, NodeKind

__all__ = ["scan"]


def scan(file: ReadableFile) -> Index:
    """What a Flax msgpack file holds.

    Raises:
        TruncatedError: it ends too early.
        LimitError: containers nest deeper than 1024, or an array has more than 64 dimensions.
        FormatError: it is no msgpack, or not Flax's; the message names the byte offset.
    """
    nodes, leaves = _Scan(file.map(), file.name).run()
    return Index(
        format="msgpack",
        structure=tuple(nodes),
        leaves=tuple(leaves),
        sources=(Source(file.name, file.size_bytes),),
        naming="strings",
    )


_INLINE_KINDS: dict[str, LeafKind] = {
    "nil": "none",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "bin": "bytes",
}

# Of an array whose header was met before: shape, dtype, encoding, where it lies in the leaf.
_Known = tuple[tuple[int, ...], str, Encoding, Span]
MAX_LEAVES = 1 << 22
MAX_PATH_KEYS = 1 << 22  # in all key paths together, beside one for every four bytes of the file

_new = tuple.__new__  # a named tuple's own constructor takes twice as long


class _Frame:
    """A container that is being read."""

    __slots__ = ("chunkable", "first_leaf", "keys", "kind", "node", "path", "pos", "size", "stop")

    def __init__(
        self,
        kind: NodeKind,
        size: int,
        path: KeyPath,
        *,
        pos: int,
        node: int,
        first_leaf: int,
        chunkable: bool,
        stop: int,
    ) -> None:
        self.kind = kind
        self.size = size
        self.path = path
        self.pos = pos
        self.node = node
        self.first_leaf = first_leaf
        self.chunkable = chunkable  # whether Flax looks for chunked arrays here
        self.stop = stop  # where the extension of a tuple ends; else -1
        self.keys: dict[Hashable, None] = {}


class _Scan:
    def __init__(self, data: memoryview, name: str) -> None:
        self.data = data
        self.name = name
        self.nodes: list[Node] = []
        self.leaves: list[Leaf] = []
        self.stack: list[_Frame] = []
        self.path_keys = 0
        self.known: dict[tuple[int, bytes], _Known] = {}  # by length and header of the payload
        self.header_lengths: dict[int, int] = {}  # of the last payload of such a length

    def run(self) -> tuple[list[Node], list[Leaf]]:
        data, stack = self.data, self.stack
        end = len(data)
        pos = self.value(0, (), chunkable=True)
        position = 0  # in the list or tuple that is on top
        positions: list[int] = []
        frame: _Frame | None = None
        while stack:
            if stack[-1] is not frame:  # a container was opened
                self.check_limits(stack[-1], pos)
                positions.append(position)
                frame, position = stack[-1], 0
            assert frame is not None
            if position == frame.size:
                self.close(frame, pos)
                stack.pop()
                position = positions.pop()
                frame = stack[-1] if stack else None
                continue
            position += 1
            if frame.kind == "dict":
                byte = data[pos] if pos < end else 0
                stop = pos + byte - 0x9F
                if 0xA0 <= byte < 0xC0 and stop <= end:  # a short str
                    key: Any = decode_text(data, pos + 1, stop, self.name)
                    path_key: Any = key
                else:
                    key, stop = self.key(pos)
                    path_key = key if type(key) is str else DictKey(key)
                if key in frame.keys:
                    raise FormatError(
                        f"{self.name}: byte {pos}: a dict has the key {key!r:.80} twice"
                    )
                frame.keys[key] = None
                pos = self.value(stop, (*frame.path, path_key), chunkable=frame.chunkable)
            else:
                pos = self.value(pos, (*frame.path, position - 1), chunkable=False)
        if pos != end:
            raise FormatError(
                f"{self.name}: byte {pos}: expected the end, found {end - pos} more bytes"
            )
        return self.nodes, self.leaves

    def check_limits(self, frame: _Frame, pos: int) -> None:
        """Before the children of a container are read: what they will take in memory."""
        if len(self.leaves) + frame.size > MAX_LEAVES:
            raise LimitError(f"{self.name}: byte {pos}: more than {MAX_LEAVES} leaves")
        self.path_keys += frame.size * (len(frame.path) + 1)
        most = MAX_PATH_KEYS + len(self.data) // 4
        if self.path_keys > most:
            raise LimitError(
                f"{self.name}: byte {pos}: key paths hold more than {most} keys in all: "
                "too many values lie too deep"
            )

    def value(self, pos: int, path: KeyPath, *, chunkable: bool) -> int:
        """Read a value, or the header of a container; the offset after it."""
        token = read_token(self.data, pos, self.name)
        kind = token.kind
        if kind == "ext":
            return self.extension(token, pos, path)
        if kind == "map":
            self.open("dict", token, path, pos=pos, chunkable=chunkable)
        elif kind == "array":
            self.open("list", token, path, pos=pos, chunkable=False)
        else:
            self.inline(path, _INLINE_KINDS[kind], self.atom(token))
        return token.stop

    def atom(self, token: Token) -> Any:
        if token.kind == "str":
            return decode_text(self.data, token.start, token.stop, self.name)
        if token.kind == "bin":
            return bytes(self.data[token.start : token.stop])
        return token.value

    def inline(self, path: KeyPath, kind: LeafKind, value: Any) -> None:
        self.nodes.append(LEAF)
        self.leaves.append(Leaf(path, kind, (), "", Inline(value)))

    def key(self, pos: int) -> tuple[Any, int]:
        """A dict key that is not a short str, and the offset after it."""
        token = read_token(self.data, pos, self.name)
        value: Any = None
        if token.kind in _INLINE_KINDS:
            return self.atom(token), token.stop
        if token.kind == "ext" and token.value == wire.EXT_SCALAR:
            header = read_array_header(self.data, token.start, token.stop, self.name)
            if header.shape == ():
                value = scalar_at(self.data, header.start, header.dtype, header.encoding)
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
        *,
        pos: int,
        chunkable: bool,
        stop: int = -1,
    ) -> None:
        count = token.value
        left = len(self.data) - token.stop
        least = 2 * count if kind == "dict" else count
        if least > left:
            raise TruncatedError(
                f"{self.name}: byte {pos}: truncated: a {kind} of {count} entries needs at least "
                f"{least} more bytes, found {left}"
            )
        if len(self.stack) >= wire.MAX_DEPTH:
            raise LimitError(
                f"{self.name}: byte {pos}: containers nest deeper than {wire.MAX_DEPTH}"
            )
        self.stack.append(
            _Frame(
                kind,
                count,
                path,
                pos=pos,
                node=len(self.nodes),
                first_leaf=len(self.leaves),
                chunkable=chunkable,
                stop=stop,
            )
        )
        self.nodes.append(Node(kind, count))

    def close(self, frame: _Frame, pos: int) -> None:
        if frame.stop >= 0 and pos != frame.stop:
            raise FormatError(
                f"{self.name}: byte {pos}: the extension of a tuple ends at byte {frame.stop}, "
                "not where its contents do"
            )
        if frame.kind != "dict" or not frame.size:
            return
        keys = tuple([key if type(key) is str else DictKey(key) for key in frame.keys])
        self.nodes[frame.node] = Node("dict", frame.size, keys)
        if frame.chunkable and frame.size == 3 and wire.CHUNKED_MARKER in frame.keys:
            nodes, leaves = self.nodes, self.leaves
            inner = nodes[frame.node :], leaves[frame.first_leaf :]
            leaf = joined(frame.path, *inner, frame.pos, self.name)
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
            inner = read_token(self.data, token.start, self.name)
            if inner.kind != "array":
                raise FormatError(
                    f"{self.name}: byte {token.start}: expected the array of a tuple, "
                    f"found a value of kind {inner.kind}"
                )
            self.open("tuple", inner, path, pos=pos, chunkable=False, stop=token.stop)
            return inner.stop
        else:
            self.inline(path, "opaque", self.opaque(token, pos))
        return token.stop

    def array(self, token: Token, path: KeyPath) -> None:
        _, code, start, stop = token
        length = stop - start
        header_length = self.header_lengths.get(length, 0)
        prefix = bytes(self.data[start : start + header_length])
        known = self.known.get((length, prefix)) if header_length else None
        if known is None:
            header = read_array_header(self.data, start, stop, self.name)
            header_length = header.start - start
            count = 1
            for size in header.shape:
                count *= size
            known = (header.shape, header.dtype, header.encoding, Span(0, count))
            prefix = bytes(self.data[start : header.start])
            self.header_lengths[length] = header_length
            self.known[length, prefix] = known
        shape, dtype, encoding, span = known
        piece = _new(Piece, (span, 0, start + header_length, length - header_length))
        kind: LeafKind = "numpy_scalar" if code == wire.EXT_SCALAR and not shape else "numpy"
        storage = _new(Pieces, ((piece,), encoding))
        self.nodes.append(LEAF)
        self.leaves.append(_new(Leaf, (path, kind, shape, dtype, storage, False, None)))

    def complex(self, token: Token) -> complex:
        data, name, start, stop = self.data, self.name, token.start, token.stop
        pos = start
        numbers = []
        if start < stop and data[start] == 0x92:
            pos = start + 1
            for _ in range(2):
                if pos < stop:
                    part = read_token(data, pos, name)
                    if part.kind in ("float", "int"):
                        numbers.append(part.value)
                    pos = part.stop
        if len(numbers) != 2 or pos != stop:
            raise FormatError(f"{name}: byte {start}: expected the two floats of a complex number")
        return complex(*numbers)

    def opaque(self, token: Token, pos: int) -> Any:
        """The msgpack library's value for an extension that is none of Flax's."""
        import msgpack

        data = bytes(self.data[token.start : token.stop])
        try:
            if token.value == -1:
                return msgpack.Timestamp.from_bytes(data)
            return msgpack.ExtType(token.value, data)
        except ValueError as e:
            raise FormatError(
                f"{self.name}: byte {pos}: extension {token.value} of {len(data)} bytes cannot be "
                f"read: {e}"
            ) from e


def scalar_at(data: memoryview, offset: int, dtype: str, encoding: Encoding) -> Any:
    """The numpy scalar whose bytes lie at `offset`."""
    import numpy as np

    from cordwood import dtypes

    native = dtypes.to_numpy(dtype)
    order = native.newbyteorder(">") if encoding == "swapped" else native
    return np.frombuffer(data, order, 1, offset)[0]
