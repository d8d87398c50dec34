"""The files that belong to a checkpoint of zarr arrays with eFormer's index."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from cordwood.formats.zarr.array_files import array_files
from cordwood.storage.locations import Location

_FILE = re.compile(
    r"tensorstore_index\.json|metadata\.json|checkpoint_metadata\.json|[^/]+_structure\.json"
)


def foreign_files(location: Location, names: Sequence[str]) -> Collection[str]:
    """Return the files in a checkpoint that are no part of it."""
    del location
    return {name for name in names if not _FILE.fullmatch(name)} - array_files(names)
