"""The stamps of files: values that change when a file is replaced or written to."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping

from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import locate_directory


def file_stamps(location: Location) -> Mapping[str, Hashable] | None:
    """Return stamps of the files at a location by their relative paths; that of one file is "".

    Of a local file it is the inode, the size, and the times of the last change of the contents and
    of the inode: a copy that keeps the first time has another second one. Of an object it is what
    the store lists. Links are followed; hidden files and what is in hidden directories are left
    out. None where nothing tells whether a file was replaced: on a web server.

    Raises FileNotFoundError if there is nothing.
    """
    if isinstance(location, LocalPath):
        place = locate_directory(location)
        status = os.stat(place)
        return _stamps_in(place) if os.path.isdir(place) else {"": _stamp(status)}
    if location.is_web:
        return None
    if location.is_hub:
        # All that is read of it is of the commit.
        return None if location.listing is None else {"": location.listing.commit}
    return _stamps_in_store(location)


def _stamps_in(folder: str) -> dict[str, Hashable]:
    stamps: dict[str, Hashable] = {}
    seen = set()
    folders = [""]
    for inner in folders:  # the loop appends to this list
        path = os.path.join(folder, inner)
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(path) as entries:
            for each in entries:
                if each.name.startswith("."):
                    continue
                name = os.path.join(inner, each.name)
                if each.is_dir():
                    folders.append(name)
                    continue
                try:
                    stamps[name] = _stamp(os.stat(f"{folder}/{name}"))
                except FileNotFoundError:  # a broken link, or removed meanwhile
                    stamps[name] = None
    return dict(sorted(stamps.items(), key=lambda item: item[0]))


def _stamp(status: os.stat_result) -> Hashable:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _stamps_in_store(location: Location) -> dict[str, Hashable] | None:
    from cordwood.storage.object_stores.list_objects import list_objects
    from cordwood.storage.object_stores.object_store_client import ObjectStore

    assert not isinstance(location, LocalPath)
    objects = {each.name: each for each in list_objects(ObjectStore(location))}
    if not objects:  # a single object
        entry = ObjectStore(location.parent).find(location.name)
        if entry is None:
            raise FileNotFoundError(f"{location}: there is no object")
        objects = {"": entry}
    if any(each.tag.e_tag is None and each.tag.version is None for each in objects.values()):
        return None
    # The time too: the tag of an object is often a digest of its bytes alone.
    return {
        name: (each.size_bytes, *each.tag, each.written_seconds) for name, each in objects.items()
    }
