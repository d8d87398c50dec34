"""The digests of a file, read from its header, which is checked by its own digest."""

from __future__ import annotations

from cordwood.encoding.digests import DATA_DIGESTS, check_coverage, decode_digests, digest_of
from cordwood.encoding.leaf_table import METADATA_KEY
from cordwood.encoding.strict_json import parse_value
from cordwood.errors import CorruptionError, FormatError
from cordwood.index import Digests, HeaderDigest
from cordwood.storage.open_files import ReadableFile

_START = f'{{"{METADATA_KEY}":'


def sealed_digests(file: ReadableFile, sealed: HeaderDigest) -> Digests:
    """Read the digests of the data of a file that cordwood wrote, from its header.

    Raises:
        CorruptionError: the header does not match its digest.
        FormatError: the header has no digests for the data of this file.
    """
    header = file.read(0, sealed.header_bytes)
    if digest_of(header) != sealed.digest:
        raise CorruptionError(
            f"{file.name}: bytes 0 to {sealed.header_bytes} (the header) do not match the digest "
            "in the index: the file is damaged, or was replaced by another one; restore a copy"
        )
    try:
        length = int.from_bytes(header[:8], "little")
        text = header[8:].decode()
        if length + 8 != len(header) or not text.startswith(_START):
            raise FormatError(
                f"expected a header of {len(header)} bytes, found one of {length + 8}"
            )
        metadata, _ = parse_value(text, len(_START))
        written = metadata.get(DATA_DIGESTS) if type(metadata) is dict else None
        if type(written) is not str:
            raise FormatError(f"{METADATA_KEY}: expected {DATA_DIGESTS}")
        digests = decode_digests(written, len(header))
    except (FormatError, UnicodeDecodeError) as e:
        raise FormatError(f"{file.name}: {e}") from e
    check_coverage(file.name, file.size_bytes, digests)
    return digests
