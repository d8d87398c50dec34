"""The index of a .npz file: a zip archive of .npy arrays."""

from __future__ import annotations

import zlib

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.numpy_files.npy_header import (
    FIRST_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    header_bytes,
    header_of_bytes,
    parse_header,
)
from cordwood.formats.numpy_files.npy_storage import deflated_storage, raw_storage
from cordwood.formats.numpy_files.zip_members import (
    DEFLATED,
    STORED,
    Member,
    find_member_data,
    read_members,
)
from cordwood.index import (
    LEAF,
    Checksum,
    Index,
    Leaf,
    LeafKind,
    Naming,
    Node,
    Source,
    unreadable_leaf,
)
from cordwood.io.open_files import READ_ERRORS, ReadableFile, naming
from cordwood.keypath import format_path

FORMAT = "npz"

_MAX_HEAD_BYTES = FIRST_BYTES + MAX_HEADER_BYTES
_DEFLATED_HEAD_BYTES = 16 << 10  # the header of an array must be within these
MAX_RATIO = 1100  # of deflate, at most 1032
_SUFFIX = ".npy"


def read_index(file: ReadableFile, *, max_bytes: int | None = None) -> Index:
    """Read the index of a .npz file: a flat dict of numpy arrays under the names of its members.

    As in numpy, the suffix `.npy` of a name is removed, and a member that is not a .npy array
    becomes bytes. Stored members are ranges of bytes, which can be mapped. Deflated members are
    inflated when they are read, each to the size in its header. The index has the CRC-32 of each.

    Names are taken for key paths joined by '/', or by '.' if no name contains '/'.

    A member that holds Python objects, text, or elements of a type that .npy does not name, or is
    encrypted or compressed by another method, is a leaf that cannot be read.

    Args:
        file: an open file.
        max_bytes: the limit of the inflated size of all deflated members together; None: 1100
            times the deflated size of each.

    Raises:
        FormatError: it is not a zip archive, or a member does not match the archive's directory.
        TruncatedError: it ends too early.
        LimitError: a member claims more bytes than its deflated size can hold, or all together
            claim more than `max_bytes`.
        UnsupportedFormatError: the archive is one of several files.
    """
    with naming(file.name):
        members = read_members(file)
        if members and not any(member.name.endswith(_SUFFIX) for member in members):
            raise FormatError(
                f"expected members whose names end in {_SUFFIX}, found {members[0].name!r:.200}"
            )
    size_bytes = sum([member.size_bytes for member in members if member.method == DEFLATED])
    if max_bytes is not None and size_bytes > max_bytes:
        raise LimitError(
            f"{file.name}: its members decompress to {size_bytes} bytes, and at most {max_bytes} "
            f"are accepted; pass max_bytes={size_bytes} to accept it"
        )
    leaves: dict[str, Leaf] = {}
    checksums: list[Checksum] = []
    extents: list[tuple[int, int, str]] = []
    for member in members:
        name = member.name.removesuffix(_SUFFIX)
        try:  # as `naming` does, without a call for each member
            if name in leaves:
                raise FormatError(f"another member has the name {name!r:.200} too")
            leaves[name], checksum = _read_member(file, member, name)
        except UnsupportedFormatError as e:
            leaves[name], checksum = unreadable_leaf((name,), str(e)), None
        except READ_ERRORS as e:
            raise type(e)(f"{file.name}: {format_path((name,))}: {e}") from e
        if checksum is not None:
            checksums.append(checksum)
        stop = member.header + member.stored_bytes if checksum is None else checksum.stop
        extents.append((member.header, stop, name))
    end = 0  # members that share bytes could make a small archive a zip bomb
    for start, stop, name in sorted(extents):
        if start < end:
            raise FormatError(
                f"{file.name}: {format_path((name,))}: its bytes are another member's too"
            )
        end = stop
    structure = (Node("dict", len(leaves), tuple(leaves)), *[LEAF] * len(leaves))
    source = Source(file.name, file.size_bytes, checksums=tuple(checksums))
    separated: Naming = "slashed" if any("/" in name for name in leaves) else "dotted"
    return Index(FORMAT, structure, tuple(leaves.values()), (source,), separated)


def _read_member(file: ReadableFile, member: Member, name: str) -> tuple[Leaf, Checksum]:
    """Return a leaf and its checksum. Raises UnsupportedFormatError for one that cannot be read."""
    if member.method == "encrypted":
        raise UnsupportedFormatError("the member is encrypted; decrypt it first")
    if member.method not in (STORED, DEFLATED):
        raise UnsupportedFormatError(
            f"the member is compressed by method {member.method}; expected 0 (stored) or 8 "
            "(deflated), which numpy writes; pack it again with one of them"
        )
    if member.size_bytes > MAX_RATIO * member.stored_bytes + _MAX_HEAD_BYTES:
        raise LimitError(
            f"a member of {member.stored_bytes} bytes cannot hold {member.size_bytes} "
            f"(MAX_RATIO is {MAX_RATIO})"
        )
    offset, head = find_member_data(file, member)
    is_deflated = member.method == DEFLATED
    checksum = Checksum(offset, offset + member.stored_bytes, member.crc32)
    if is_deflated:
        head = _inflate_head(file.read(offset, min(member.stored_bytes, _DEFLATED_HEAD_BYTES)))
        if len(head) < min(member.size_bytes, FIRST_BYTES):
            raise FormatError(
                f"its size is given as {member.size_bytes} bytes, but its first "
                f"{_DEFLATED_HEAD_BYTES} inflate to {len(head)}"
            )
        head = head[: member.size_bytes]
        checksum = checksum._replace(inflated_bytes=member.size_bytes)
    is_array = head.startswith(MAGIC)
    size = header_bytes(head[:FIRST_BYTES]) if is_array else 0
    if size > len(head) and not is_deflated:
        head = file.read(offset, min(size, member.stored_bytes))
    if size > len(head):
        raise TruncatedError("it ends inside the header of its array; copy or save it again")
    head = head[:size]
    header = parse_header(head) if is_array else header_of_bytes(member.size_bytes)
    if header.stop != member.size_bytes:
        raise FormatError(
            f"expected {header.stop} bytes for {header.dtype}{list(header.shape)} and its header, "
            f"found a member of {member.size_bytes}"
        )
    if is_deflated:
        storage = deflated_storage(header, offset, member.stored_bytes, crc32=member.crc32)
    else:
        storage = raw_storage(header, offset + size)
        checksum = checksum._replace(head_bytes=size, head_crc32=zlib.crc32(head))
    kind: LeafKind = "numpy" if is_array else "bytes"
    return Leaf((name,), kind, header.shape, header.dtype, storage), checksum


def _inflate_head(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _MAX_HEAD_BYTES)
    except zlib.error as e:
        raise CorruptionError(f"the member is damaged: {e}") from e
