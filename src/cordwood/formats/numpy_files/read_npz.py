"""The index of a .npz file: a zip archive of .npy arrays.

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7 (local header), 4.3.12
(central directory), 4.3.14 to 4.3.16 (its end) and 4.5.3 (sizes of 64 bits). The central
directory is authoritative; the local header before a member must agree with it. Python's zipfile
reads a damaged directory without an error: it ignores the number of members, and a name whose
length is too great swallows the members after it.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.numpy_files.read_npy import (
    FIRST_BYTES,
    MAGIC,
    MAX_HEADER_BYTES,
    deflated_storage,
    header_bytes,
    header_of_bytes,
    parse_header,
    raw_storage,
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
    if member.method == _ENCRYPTED_METHOD:
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


STORED, DEFLATED = 0, 8

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_LOCAL_MAGIC, _ENTRY_MAGIC, _END_MAGIC = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64_MAGIC, _LOCATOR64_MAGIC = b"PK\6\6", b"PK\6\7"
_MAX_COMMENT_BYTES = (1 << 16) - 1
_FULL32 = (1 << 32) - 1  # the value is in the extra field, in 64 bits
_ENCRYPTED, _UTF8 = 0x0001, 0x0800
_ENCRYPTED_METHOD = -1
_WINDOW_BYTES = 1024


class Member(NamedTuple):
    """One file of the archive."""

    name: str
    method: int  # STORED, DEFLATED, or one that is not read
    crc32: int
    stored_bytes: int
    size_bytes: int  # inflated
    header: int  # the offset of its local header


def read_members(file: ReadableFile) -> list[Member]:
    """Return the members of an archive in the order of its central directory, without folders.

    Raises FormatError, TruncatedError or UnsupportedFormatError, whose messages do not name the
    file.
    """
    start, stop, count = _find_directory(file)
    raw = file.read(start, stop - start)
    members: dict[str, Member] = {}
    at = 0
    while at < len(raw):
        member, at = _parse_entry(raw, at, start)
        if member.name in members:
            raise FormatError(f"two members are called {member.name!r:.200}")
        members[member.name] = member
    if len(members) != count:
        raise FormatError(f"the directory announces {count} members, and has {len(members)}")
    return [member for name, member in members.items() if not name.endswith("/")]


def _find_directory(file: ReadableFile) -> tuple[int, int, int]:
    """Return where the central directory begins and ends, and the number of its entries."""
    tail_bytes = min(file.size_bytes, _END.size + _MAX_COMMENT_BYTES)
    base = file.size_bytes - tail_bytes
    tail = file.read(base, tail_bytes)
    at = tail.rfind(_END_MAGIC)
    while at >= 0:
        rest = len(tail) - at - _END.size
        if rest >= 0 and _END.unpack_from(tail, at)[-1] == rest:
            break
        at = tail.rfind(_END_MAGIC, 0, at)
    if at < 0:
        if file.read(0, min(4, file.size_bytes)) == _LOCAL_MAGIC:
            raise TruncatedError(
                "a zip archive without its directory, which comes last: it is cut short, or was "
                "not closed; copy or save it again"
            )
        raise FormatError("this is not a zip archive: it has no directory at its end")
    _, disk, first_disk, here, count, size, start, _ = _END.unpack_from(tail, at)
    end = base + at
    located = _find_end64(file, end)
    if located is not None:
        end, disk, first_disk, here, count, size, start = located
    if disk or first_disk or here != count:
        raise UnsupportedFormatError("a zip archive of several files cannot be read; join them")
    if start + size != end or count * _ENTRY.size > size:
        raise FormatError(
            f"the directory of {count} members, bytes {start} to {start + size}, does not end "
            f"at its end record, at byte {end}"
        )
    return start, end, count


def _find_end64(file: ReadableFile, end: int) -> tuple[int, int, int, int, int, int, int] | None:
    """Return the offset and the fields of the 64-bit end record, or None if there is none."""
    at = end - _LOCATOR64.size
    if at < 0:
        return None
    magic, _, offset, _ = _LOCATOR64.unpack(file.read(at, _LOCATOR64.size))
    if magic != _LOCATOR64_MAGIC:
        return None
    if offset + _END64.size > at:
        raise FormatError(f"the end of the directory should be at byte {offset}, and is not")
    fields = _END64.unpack(file.read(offset, _END64.size))
    if fields[0] != _END64_MAGIC:
        raise FormatError(f"byte {offset}: expected the end of the directory, found {fields[0]!r}")
    return (offset, *fields[4:])


def _parse_entry(raw: bytes, at: int, base: int) -> tuple[Member, int]:
    where = f"byte {base + at}: the directory"
    if at + _ENTRY.size > len(raw):
        raise FormatError(f"{where} ends within an entry")
    fields = _ENTRY.unpack_from(raw, at)
    magic, _, _, flags, method, _, _, crc32, stored, size, name_length, extra_length = fields[:12]
    comment_length, offset = fields[12], fields[16]
    name_stop = at + _ENTRY.size + name_length
    stop = name_stop + extra_length + comment_length
    if magic != _ENTRY_MAGIC or stop > len(raw):
        raise FormatError(f"{where} is damaged: expected an entry, found {magic!r}")
    name = _decode_name(raw[at + _ENTRY.size : name_stop], flags, where)
    extra = raw[name_stop : name_stop + extra_length]
    size, stored, offset = _wide(extra, [size, stored, offset], where)
    if flags & _ENCRYPTED:
        method = _ENCRYPTED_METHOD
    if method == STORED and stored != size:
        raise FormatError(f"member {name!r:.200} takes {stored} bytes, and is stored in {size}")
    return Member(name, method, crc32, stored, size, offset), stop


def _wide(extra: bytes, numbers: list[int], where: str) -> list[int]:
    """Return the numbers; those that do not fit 32 bits come from the extra field."""
    if _FULL32 not in numbers:
        return numbers
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if tag == 1:
            wide = [i for i, number in enumerate(numbers) if number == _FULL32]
            if min(length, len(extra) - at) < 8 * len(wide):
                break
            for i, value in zip(wide, struct.unpack_from(f"<{len(wide)}Q", extra, at), strict=True):
                numbers[i] = value
            return numbers
        at += length
    raise FormatError(f"{where} has an entry without its sizes of 64 bits")


def _decode_name(raw: bytes, flags: int, where: str) -> str:
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError as e:
        raise FormatError(f"{where} has a name that is not UTF-8: {raw!r:.200}") from e


def find_member_data(file: ReadableFile, member: Member) -> tuple[int, bytes]:
    """Return the offset of the data of a member, and its first bytes (or all of them).

    Raises FormatError, which does not name the file, if the local header does not agree with the
    directory.
    """
    room = file.size_bytes - member.header
    window = b""
    if room >= _LOCAL.size:
        window = file.read(member.header, min(_WINDOW_BYTES, room))
    if window[:4] != _LOCAL_MAGIC:
        raise FormatError(f"byte {member.header}: expected a member, found {window[:4]!r}")
    _, _, flags, method, _, _, _, _, _, name_length, extra_length = _LOCAL.unpack_from(window)
    start = _LOCAL.size + name_length + extra_length
    if start + member.stored_bytes > room:
        raise TruncatedError(
            f"it ends at byte {member.header + start + member.stored_bytes}, after the end of the "
            f"file at byte {file.size_bytes}"
        )
    name_raw = file.read(member.header + _LOCAL.size, name_length)
    where = f"byte {member.header}: a member"
    if method != member.method or _decode_name(name_raw, flags, where) != member.name:
        raise FormatError(f"{where} does not agree with the directory about its name or method")
    return member.header + start, window[start : start + member.stored_bytes]
