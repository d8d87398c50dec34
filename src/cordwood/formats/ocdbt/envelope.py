"""The envelope of a manifest and of a node: a magic number, the length, compression, a checksum."""

from __future__ import annotations

from cordwood.errors import CorruptionError, FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.ocdbt.body_reader import BodyReader, size_limit
from cordwood.formats.zarr.array_reader import ends_in_crc32c

MAX_NODE_BYTES = 1 << 28  # decoded; what Orbax writes stays below 1e8
_STEP_BYTES = 1 << 20
_HEADER_BYTES = 14  # the magic number, the length, the version and the compression
_CRC_BYTES = 4


def put_in_envelope(magic: int, body: bytes) -> bytes:
    """Return the bytes of a manifest or node whose body is not compressed."""
    import google_crc32c

    length = _HEADER_BYTES + len(body) + _CRC_BYTES
    data = magic.to_bytes(4, "big") + length.to_bytes(8, "little") + bytes(2) + body
    return data + int(google_crc32c.value(data)).to_bytes(_CRC_BYTES, "little")


def open_envelope(data: bytes, magic: int) -> BodyReader:
    """Return a reader of the decompressed bytes between header and checksum.

    Raises:
        CorruptionError: the bytes do not match their checksum.
        FormatError: they do not begin with `magic`, or have another length than they say.
        LimitError: they decompress to more than fits their size.
        UnsupportedFormatError: they are of a newer version.
    """
    if int.from_bytes(data[:4], "big") != magic:
        raise FormatError(
            f"expected to begin with {magic:08x}, found {data[:4].hex() or 'nothing'}"
        )
    length = int.from_bytes(data[4:12], "little")
    if length != len(data):
        raise FormatError(f"expected {length} bytes by its header, found {len(data)}")
    if not ends_in_crc32c(data):
        raise CorruptionError("it does not match its checksum: it is damaged; copy it again")
    header = BodyReader(data[:-4], len(data))
    header.skip(12)
    version, compression = header.varint(), header.varint()
    if version or compression > 1:
        raise UnsupportedFormatError(
            f"version {version}, compression {compression}; expected version 0 and compression 0 "
            "or 1 (zstd)"
        )
    stored = header.remaining()
    if not compression:
        return BodyReader(stored, len(data))
    import zstandard

    limit = size_limit(len(data), at_most=MAX_NODE_BYTES)
    decoded = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            while len(decoded) <= limit and (more := reader.read(_STEP_BYTES)):
                decoded += more
    except zstandard.ZstdError as e:
        raise CorruptionError(f"it cannot be decompressed: {e}") from e
    if len(decoded) > limit:
        raise LimitError(
            f"it decompresses to more than {limit} bytes, the limit for {len(data)} stored bytes"
        )
    return BodyReader(bytes(decoded), len(data))
