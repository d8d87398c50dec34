"""Objects of a store as values: their bytes, their tags, and their entries in a listing."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tag(NamedTuple):
    """The version of an object, which each write changes."""

    e_tag: str | None
    version: str | None = None


class StoredObject(NamedTuple):
    """The bytes of an object, and its tag; both None if there is no object."""

    data: bytes | None
    tag: Tag | None


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    name: str
    size_bytes: int
    tag: Tag
    written_seconds: float  # since 1970, by the clock of the store


class ObjectPart(NamedTuple):
    """A range of an object, in chunks one after another, and the size of the whole object."""

    chunks: list[memoryview]
    object_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def data(self) -> bytes:
        """A copy of all chunks."""
        return b"".join(self.chunks)


def tag_of(meta: Any) -> Tag:
    """Return the tag of an object, from what obstore says of it."""
    return Tag(meta.get("e_tag"), meta.get("version"))


def entry_of(name: str, meta: Any, tag: Tag) -> ObjectEntry:
    """Return the entry of an object, from what obstore says of it."""
    return ObjectEntry(name, int(meta["size"]), tag, meta["last_modified"].timestamp())
