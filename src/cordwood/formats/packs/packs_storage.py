"""The storage of a directory of packs: a local directory, or one in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.locations import LocalPath, Location

if TYPE_CHECKING:
    from cordwood.storage.storage_protocol import Storage


def store_at(location: Location, *, to_save: bool = False) -> Storage:
    """Return the directory of packs at a path or URL, which need not exist yet.

    Raises UnsupportedFormatError with `to_save` for a URL that can only be read.
    """
    from cordwood.formats.packs.cordwood_json import RULES

    if isinstance(location, LocalPath):
        from cordwood.storage.local_storage import LocalStorage

        return LocalStorage(location, RULES)
    if to_save and location.is_web:
        raise UnsupportedFormatError(
            f"{location.address}: {location.scheme}:// can only be read; expected a path, or a URL "
            "of s3://, gs:// or az:// to save to"
        )
    from cordwood.storage.object_stores.object_storage import ObjectStorage

    return ObjectStorage(location, RULES)
