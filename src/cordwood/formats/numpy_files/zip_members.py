"""The members of a zip archive, from its central directory.

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7 (local header), 4.3.12
(central directory), 4.3.14 to 4.3.16 (its end) and 4.5.3 (sizes of 64 bits). The central
directory is authoritative; the local header before a member must agree with it. Python's zipfile
reads a damaged directory without an error: it ignores the number of members, and a name whose
length is too great swallows the members after it.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

from cordwood.errors import FormatError, TruncatedError, UnsupportedFormatError
from cordwood.io.open_files import ReadableFile

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
_WINDOW_BYTES = 1024


class Member(NamedTuple):
    """One file of the archive."""

    name: str
    method: int | Literal["encrypted"]  # STORED, DEFLATED, or one that is not read
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
        comment_bytes = len(tail) - at - _END.size
        if comment_bytes >= 0 and _END.unpack_from(tail, at)[-1] == comment_bytes:
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
        return Member(name, "encrypted", crc32, stored, size, offset), stop
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
