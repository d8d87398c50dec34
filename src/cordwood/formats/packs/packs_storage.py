"""The storage of a directory of packs: a local directory, or one in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cordwood.errors import UnsupportedFormatError
from cordwood.formats.packs.cordwood_json import INDEX_NAME, MAX_INDEX_BYTES, decode_index, names_in
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, is_pack_name
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.storage_protocol import NamingRules

if TYPE_CHECKING:
    from cordwood.storage.storage_protocol import Storage

RULES = NamingRules(
    INDEX_NAME,
    MAX_INDEX_BYTES,
    (HUGGING_FACE_NAME,),
    is_pack_name,
    lambda index: frozenset() if index is None else names_in(decode_index(index)),
)


def store_at(location: Location, *, to_save: bool = False) -> Storage:
    """Return the directory of packs at a path or URL, which need not exist yet.

    Raises UnsupportedFormatError with `to_save` for a URL that can only be read.
    """
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
