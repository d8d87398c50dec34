"""The index of a .npz file: a zip archive of .npy arrays."""

from __future__ import annotations

import json
import zlib
from typing import NamedTuple

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.numpy_files.element_layout import deflated_storage, raw_storage
from cordwood.formats.numpy_files.npy_header import (
    FIRST_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    header_bytes,
    parse_header,
)
from cordwood.formats.numpy_files.zip_members import (
    DEFLATED,
    Member,
    find_member_data,
    read_members,
)
from cordwood.index import (
    Box,
    Checksum,
    Encoded,
    Index,
    Leaf,
    Naming,
    Piece,
    Pieces,
    Source,
    Span,
)
from cordwood.keypath import format_path
from cordwood.storage.open_files import ReadableFile
from cordwood.tree.structure import LEAF, Node

FORMAT = "npz"

_MAX_HEAD_BYTES = FIRST_BYTES + MAX_HEADER_BYTES
_DEFLATED_HEAD_BYTES = 16 << 10  # the header of an array must be within these
MAX_RATIO = 1100  # of deflate, at most 1032
_SUFFIX = ".npy"


class _MemberLeaf(NamedTuple):
    """A leaf, its checksum and the bytes of the file that its member takes."""

    leaf: Leaf
    checksum: Checksum
    begin: int  # of the local header of the member


def read_index(file: ReadableFile, *, max_bytes: int | None = None) -> Index:
    """Read the index of a .npz file: a flat dict of numpy arrays under the names of its members.

    As in numpy, the suffix `.npy` of a name is removed, and a member that is not a .npy array
    becomes bytes. Stored members are ranges of bytes, which can be mapped. Deflated members are
    inflated when they are read, each to the size in its header. The index has the CRC-32 of each.

    Names are taken for key paths joined by '/', or by '.' if no name contains '/'.

    Args:
        file: an open file.
        max_bytes: the limit of the inflated size of all deflated members together; None: 1100
            times the deflated size of each.

    Raises:
        FormatError: it is not a zip archive, or a member does not match the archive's directory.
        TruncatedError: it ends too early.
        LimitError: a member claims more bytes than its deflated size can hold, or all together
            claim more than `max_bytes`.
        UnsupportedFormatError: a member holds Python objects, text, or elements of a type that
            .npy does not name, or is encrypted or compressed by another method; the message names
            it.
    """
    try:
        members = read_members(file)
    except (FormatError, UnsupportedFormatError) as e:
        raise type(e)(f"{file.name}: {e}") from e
    size_bytes = sum([member.size_bytes for member in members if member.method == DEFLATED])
    if max_bytes is not None and size_bytes > max_bytes:
        raise LimitError(
            f"{file.name}: its members decompress to {size_bytes} bytes, and at most {max_bytes} "
            f"are accepted; pass max_bytes={size_bytes} to accept it"
        )
    member_leaves = []
    names: set[str] = set()
    for member in members:
        name = member.name.removesuffix(_SUFFIX)
        try:
            if name in names:
                raise FormatError(f"another member has the name {name!r:.200} too")
            member_leaves.append(_read_member(file, member, name))
        except (FormatError, UnsupportedFormatError, CorruptionError) as e:
            raise type(e)(f"{file.name}: {format_path((name,))}: {e}") from e
        names.add(name)
    _check_no_overlap(member_leaves, file.name)
    leaves = [each.leaf for each in member_leaves]
    structure = (Node("dict", len(leaves), tuple([str(leaf.key_path[0]) for leaf in leaves])),)
    checksums = tuple([each.checksum for each in member_leaves])
    source = Source(file.name, file.size_bytes, checksums=checksums)
    naming: Naming = "slashed" if any("/" in name for name in names) else "dotted"
    return Index(FORMAT, structure + (LEAF,) * len(leaves), tuple(leaves), (source,), naming)


def _read_member(file: ReadableFile, member: Member, name: str) -> _MemberLeaf:
    if member.size_bytes > MAX_RATIO * member.stored_bytes + _MAX_HEAD_BYTES:
        raise LimitError(
            f"a member of {member.stored_bytes} bytes cannot hold {member.size_bytes} "
            f"(MAX_RATIO is {MAX_RATIO})"
        )
    offset, first = find_member_data(file, member)
    stop = offset + member.stored_bytes
    if member.method == DEFLATED:
        head = _inflate_head(file.read(offset, min(member.stored_bytes, _DEFLATED_HEAD_BYTES)))
        if len(head) < min(member.size_bytes, FIRST_BYTES):
            raise FormatError(
                f"its size is given as {member.size_bytes} bytes, but its first "
                f"{_DEFLATED_HEAD_BYTES} inflate to {len(head)}"
            )
        head = head[: member.size_bytes]
        checksum = Checksum(offset, stop, member.crc32, inflated_bytes=member.size_bytes)
    else:
        head = first
        checksum = Checksum(offset, stop, member.crc32)
    if not head.startswith(MAGIC):
        return _MemberLeaf(_bytes_leaf(member, name, offset), checksum, member.header)
    size = header_bytes(head[:FIRST_BYTES])
    if size > len(head) and member.method != DEFLATED:
        head = file.read(offset, min(size, member.stored_bytes))
    if size > len(head):
        raise TruncatedError("it ends inside the header of its array; copy or save it again")
    head = head[:size]
    header = parse_header(head)
    if header.stop != member.size_bytes:
        raise FormatError(
            f"expected {header.stop} bytes for {header.dtype}{list(header.shape)} and its header, "
            f"found a member of {member.size_bytes}"
        )
    storage: Pieces | Encoded
    if member.method == DEFLATED:
        storage = deflated_storage(header, offset, member.stored_bytes, crc32=member.crc32)
    else:
        storage = raw_storage(header, offset + size)
        checksum = checksum._replace(head_bytes=size, head_crc32=zlib.crc32(head))
    leaf = Leaf((name,), "numpy", header.shape, header.dtype, storage)
    return _MemberLeaf(leaf, checksum, member.header)


def _inflate_head(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _MAX_HEAD_BYTES)
    except zlib.error as e:
        raise CorruptionError(f"the member is damaged: {e}") from e


def _bytes_leaf(member: Member, name: str, offset: int) -> Leaf:
    """Return the leaf of a member that is not an array."""
    size = member.size_bytes
    storage: Pieces | Encoded = Pieces(())
    if size and member.method == DEFLATED:
        piece = Piece(Box((0,), (size,)), 0, offset, member.stored_bytes)
        codec = {"compressor": "deflate", "order": "C", "swapped": False, "crc32": member.crc32}
        storage = Encoded((piece,), (size,), json.dumps(codec, separators=(",", ":")))
    elif size:
        storage = Pieces((Piece(Span(0, size), 0, offset, size),))
    return Leaf((name,), "bytes", (size,), "uint8", storage)


def _check_no_overlap(member_leaves: list[_MemberLeaf], file_name: str) -> None:
    """Raise FormatError if members share bytes, with which a small archive could be a zip bomb."""
    end = 0
    for each in sorted(member_leaves, key=lambda each: each.begin):
        if each.begin < end:
            name = format_path(each.leaf.key_path)
            raise FormatError(f"{file_name}: {name}: its bytes are another member's too")
        end = each.checksum.stop
