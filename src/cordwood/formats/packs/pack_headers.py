"""The header of a pack: checked by the digest in the index, it has the digests of the data."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.encoding.cordwood_metadata import DATA_DIGESTS, decode_digests
from cordwood.encoding.digests import check_coverage, digest_of
from cordwood.encoding.strict_json import parse_value
from cordwood.encoding.tensor_names import METADATA_KEY
from cordwood.errors import CorruptionError, FormatError
from cordwood.formats.safetensors.fast_header import METADATA_FIRST
from cordwood.index import Digests, HeaderDigest, Source
from cordwood.io.open_files import ReadableFile
from cordwood.io.read_from_holders import read_from_holders


def read_pack_header(file: ReadableFile, header_digest: HeaderDigest) -> bytes:
    """Read the header of a pack. Raises CorruptionError if it does not match its digest."""
    return read_from_holders(file, lambda: _read_and_check(file, header_digest))


def _read_and_check(file: ReadableFile, header_digest: HeaderDigest) -> bytes:
    header = file.read(0, header_digest.header_bytes)
    if digest_of(header) != header_digest.digest:
        raise CorruptionError(
            f"{file.name}: bytes 0 to {header_digest.header_bytes} (the header) do not match the "
            "digest in the index: the file is damaged, or was replaced by another one; restore a "
            "copy"
        )
    return header


def digests_of_pack(
    sources: Sequence[Source], files: Sequence[ReadableFile], number: int
) -> Digests:
    """Return the digests of the data of a pack, one of open files, as `read_pack_digests`."""
    header_digest = sources[number].header_digest
    assert header_digest is not None
    return read_pack_digests(files[number], header_digest)


def read_pack_digests(
    file: ReadableFile, header_digest: HeaderDigest, *, header: bytes | None = None
) -> Digests:
    """Read the digests of the data of a pack, from its header.

    Args:
        file: the pack.
        header_digest: the digest of its header.
        header: its header, if it was read before.

    Raises:
        CorruptionError: the header does not match its digest.
        FormatError: the header has no digests for the data of this file.
    """
    if header is None:
        header = read_pack_header(file, header_digest)
    try:
        length = int.from_bytes(header[:8], "little")
        text = header[8:].decode()
        if length + 8 != len(header) or not text.startswith(METADATA_FIRST):
            raise FormatError(
                f"expected a header of {len(header)} bytes, found one of {length + 8}"
            )
        metadata, _ = parse_value(text, len(METADATA_FIRST))
        written = metadata.get(DATA_DIGESTS) if type(metadata) is dict else None
        if type(written) is not str:
            raise FormatError(f"{METADATA_KEY}: expected {DATA_DIGESTS}")
        digests = decode_digests(written, len(header))
    except (FormatError, UnicodeDecodeError) as e:
        raise FormatError(f"{file.name}: {e}") from e
    check_coverage(file.name, file.size_bytes, digests)
    return digests
