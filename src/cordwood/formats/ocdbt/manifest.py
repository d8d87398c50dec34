"""The manifest of a database: where the root node of the newest version is."""

from __future__ import annotations

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.ocdbt.data_files import data_file_at, read_data_files
from cordwood.formats.ocdbt.envelope import open_envelope
from cordwood.formats.ocdbt.nodes import NodeReference

MANIFEST_NAME = "manifest.ocdbt"
MANIFEST_MAGIC = 0x0CDB3A2A
NOWHERE = (1 << 64) - 1  # the offset and the length of the root of an empty version


def parse_manifest(data: bytes) -> NodeReference | None:
    """Return the root of the newest version, or None if the database is empty.

    Raises:
        CorruptionError: the manifest does not match its checksum.
        FormatError: it is not a manifest.
        UnsupportedFormatError: it is of a newer version, or its versions are in other files.
    """
    body = open_envelope(data, MANIFEST_MAGIC)
    body.skip(16)  # the UUID of the database
    if body.varint() != 0:
        raise UnsupportedFormatError("numbered manifests are not read; expected a single one")
    body.varints(2)  # the size limits of the writer
    body.skip(1)  # the arity of the version tree
    if body.varint():
        body.skip(4)  # the compression level
    files = read_data_files(body, base=b"")
    count = body.varint()
    generations = body.varints(count)
    heights = body.take(count)
    locations = [body.varints(count) for _ in range(3)]
    for _ in range(3):
        body.varints(count)  # statistics
    body.skip(8 * count)  # when each was written
    older = body.varint()  # nodes of the version tree
    for _ in range(5):
        body.varints(older)  # generations, locations and numbers of versions
    body.skip(9 * older)  # times and heights
    body.end()
    if not count:
        return None
    newest = max(range(count), key=generations.__getitem__)
    number, offset, length = [column[newest] for column in locations]
    if not length or (offset, length) == (NOWHERE, NOWHERE):  # every key was deleted
        return None
    return NodeReference(data_file_at(files, number), offset, length, heights[newest], b"")
