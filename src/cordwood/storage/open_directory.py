"""The opening of a directory at a location: a path or a URL."""

from __future__ import annotations

from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import locate_directory
from cordwood.storage.readable_directory import OpenDirectory


def directory_at(location: Location) -> OpenDirectory:
    """Open a directory at a path, or what lies below the URL of an object store or of the hub.

    Raises FileNotFoundError and NotADirectoryError.
    """
    if isinstance(location, LocalPath):
        return LocalDirectory(locate_directory(location))
    if location.is_hub:
        from cordwood.storage.hub.hub_directory import HubDirectory

        return HubDirectory(location)
    from cordwood.storage.object_stores.object_directory import ObjectDirectory

    return ObjectDirectory(location)
