"""Every byte of a directory of the zarr layout against its digest."""

from __future__ import annotations

import os

from cordwood.api.verify import check_sources
from cordwood.errors import CorruptionError
from cordwood.formats.opened import Checked
from cordwood.formats.zarr.index_file import item_names
from cordwood.formats.zarr.open import open_directory
from cordwood.formats.zarr.read_index import read_index, read_index_file
from cordwood.io.source_digests import SourceDigests


def verify_all(path: str | os.PathLike[str]) -> Checked:
    """Check all items of a directory; those that cordwood did not write carry no digests.

    Raises:
        IncompleteCheckpointError: there is no index.
        CorruptionError: the index, a `.zarray` or chunks are damaged, missing or too many; names
            each leaf, file and range.
        FormatError: the directory is not what docs/format.md says.
    """
    leaves = verified = unverified = 0
    with open_directory(os.fspath(path)) as directory:
        for name in item_names(read_index_file(directory)):
            index = read_index(directory, name)
            files = [directory.file(source.name, source.size_bytes) for source in index.sources]
            try:
                check_sources(index, files, SourceDigests(index.sources))
            except CorruptionError as e:
                raise CorruptionError(f"{directory.name}: {e}") from e
            leaves += len(index.leaves)
            for source in index.sources:
                if source.digests is not None:
                    verified += source.size_bytes
                else:
                    unverified += source.size_bytes
    return Checked(leaves, verified, unverified)
