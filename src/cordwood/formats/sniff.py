"""Which format a file is of, by what it holds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.formats.file_formats import FORMATS, Format, format_by_suffix, read_file_index
from cordwood.storage.open_files import ReadableFile

_HEAD_BYTES = 128 << 10
_ZIP, _GZIP, _ZSTD, _NPY = b"PK", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x93NUMPY"
_MAX_HEADER_BYTES = 100_000_000  # of safetensors
_PAIR = b"\x92"  # msgpack's first byte of a record of two
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])  # msgpack's first bytes of a dict
_EXTENSIONS = frozenset([0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)])  # and of an array

# What others begin with, and what is to be done about it.
_OTHERS: Sequence[tuple[bytes, str]] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: read it with h5py, or with what wrote it"),
    (b"GGUF", "a GGUF file: read it with gguf"),
    (b"PK", "a zip archive without .npy members"),
    (b"\x80\2", "a Python pickle, and cordwood never unpickles: load it with what wrote it"),
    (b"\x80\3", "a Python pickle, and cordwood never unpickles: load it with what wrote it"),
    (b"\x80\4", "a Python pickle, and cordwood never unpickles: load it with what wrote it"),
    (b"\x80\5", "a Python pickle, and cordwood never unpickles: load it with what wrote it"),
    (b"\x1f\x8b", "a gzip stream of something else than Flax's msgpack: decompress it first"),
    (_ZSTD, "a zstd stream of something else than Flax's msgpack: decompress it first"),
)
_TORCH = (
    "a PyTorch file (a pickle in a zip archive), and cordwood never unpickles: load it with torch "
    "and write it with safetensors.torch.save_file"
)


def recognise(file: ReadableFile) -> Format:
    """The format of a file, by its content. Where two would do, its suffix decides.

    Raises UnsupportedFormatError where it is of none; the message says what was looked for, and
    what there is.
    """
    head = file.read(0, min(_HEAD_BYTES, file.size_bytes))
    named = format_by_suffix(file.name)
    rows = [named, *FORMATS] if named is not None else FORMATS
    for row in rows:
        if _RECOGNISERS[row.name](file, head):
            return row
    names = ", ".join(row.name for row in FORMATS)
    raise UnsupportedFormatError(
        f"{file.name}: expected a file of one of the formats {names}, found {_other(file, head)}"
    )


def other_than(file: ReadableFile, row: Format) -> str | None:
    """Return what a file is that could not be read as of a format, as far as that is known.

    None where nothing better is known: it is of that format, and damaged.
    """
    head = file.read(0, min(_HEAD_BYTES, file.size_bytes))
    if row.compression is not None and _RECOGNISERS[row.name](file, head):
        return None
    if row.compression == "zst" and head.startswith(_ZSTD) and not _first_of_zstd(head):
        return None
    for other in FORMATS:
        if other is not row and _RECOGNISERS[other.name](file, head):
            return f"{other.description}: rename it, or pass format={other.name!r}"
    return _foreign(file, head) if head else "an empty file"


def _other(file: ReadableFile, head: bytes) -> str:
    if not head:
        return "an empty file"
    return _foreign(file, head) or f"{file.size_bytes} bytes that begin with {head[:8]!r}"


def _foreign(file: ReadableFile, head: bytes) -> str | None:
    """What a file is that no format here is for."""
    if head.startswith(_ZIP) and any(name.endswith("data.pkl") for name in _members(file)):
        return _TORCH
    for magic, what in _OTHERS:
        if head.startswith(magic):
            return what
    return None


def _members(file: ReadableFile) -> list[str]:
    from cordwood.formats.numpy_files.zip_members import member_names

    try:
        return member_names(file)
    except CordwoodError:
        return []


def _is_safetensors(file: ReadableFile, head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and length <= min(_MAX_HEADER_BYTES, file.size_bytes - 8)


def _is_npz(file: ReadableFile, head: bytes) -> bool:
    if head.startswith(b"PK\5\6"):
        return True  # of no arrays
    return head.startswith(_ZIP) and any(name.endswith(".npy") for name in _members(file))


def _is_npy(file: ReadableFile, head: bytes) -> bool:
    if not head.startswith(_NPY):
        return False
    return _scans(file, "npy") or not _scans(file, "eqx")


def _is_eqx(file: ReadableFile, head: bytes) -> bool:
    return head.startswith(_NPY) and _scans(file, "eqx")


def _is_msgpack(file: ReadableFile, head: bytes) -> bool:
    if not _begins_msgpack(head) and not file.name.endswith(".msgpack"):
        return False  # numbers and lists, which text looks like too
    return not _is_records(file, head) and _scans(file, "msgpack")


def is_records(file: ReadableFile) -> bool:
    """Whether a file is a stream of msgpack records, which Flax's suffix is used for too.

    So is a damaged one, which begins with a record, and is nothing of Flax's.
    """
    return file.size_bytes > 0 and _is_records(file, file.read(0, 1))


def _is_records(file: ReadableFile, head: bytes) -> bool:
    if not head.startswith(_PAIR):
        return False
    if _scans(file, "msgpack-records"):
        return True
    from cordwood.formats.msgpack_records.read_index import begins_record

    return begins_record(file.map(), file.name) and not _scans(file, "msgpack")


def _scans(file: ReadableFile, name: str) -> bool:
    (row,) = [row for row in FORMATS if row.name == name]
    try:
        read_file_index(file, row)
    except CordwoodError:
        return False
    return True


def _begins_msgpack(head: bytes) -> bool:
    return head[:1] != b"" and (head[0] in _MAPS or head[0] in _EXTENSIONS)


def _is_gzip(_file: ReadableFile, head: bytes) -> bool:
    if not head.startswith(_GZIP):
        return False
    try:
        return _begins_msgpack(zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, 8))
    except zlib.error:
        return False


def _is_zstd(_file: ReadableFile, head: bytes) -> bool:
    return head.startswith(_ZSTD) and _begins_msgpack(_first_of_zstd(head))


def _first_of_zstd(head: bytes) -> bytes:
    """Return the first bytes that a zstd stream decompresses to; none if that is not known."""
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(head) as stream:
            return stream.read(8)
    except zstandard.ZstdError:
        return b""


_RECOGNISERS: Mapping[str, Callable[[ReadableFile, bytes], bool]] = {
    "safetensors": _is_safetensors,
    "npz": _is_npz,
    "npy": _is_npy,
    "eqx": _is_eqx,
    "msgpack": _is_msgpack,
    "msgpack.gz": _is_gzip,
    "msgpack.zst": _is_zstd,
    "msgpack-records": _is_records,
}
