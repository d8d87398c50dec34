"""A tree of a checkpoint as a value, by which another process opens the same tree."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.formats.table import MSGPACK_GZ, MSGPACK_ZST
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.storage.locations import Location
from cordwood.storage.paths import absolute_location, changed_ns


class TreeReference(NamedTuple):
    """A tree of a checkpoint.

    Attributes:
        location: the checkpoint, an absolute path or a URL.
        prefix: the prefix of the tree, as for `open`.
        digest: of what the index says: leaves and files.
    """

    location: Location
    prefix: str | None
    digest: str

    def open(self) -> Checkpoint:
        """Open the tree.

        Raises ProcessError if it is another one than that of the process that made the reference.
        """
        checkpoint = open_at(self.location, prefix=self.prefix)
        if _digest(checkpoint, self.location) != self.digest:
            checkpoint.close()
            raise ProcessError(
                f"{self.location}: a worker sees another checkpoint there than the call that has "
                "sent it: all workers must see the same files under this path, and nothing may "
                "replace the checkpoint meanwhile; call again once that is so"
            )
        return checkpoint


def refer_to_tree(checkpoint: Checkpoint, location: Location, prefix: str | None) -> TreeReference:
    """Return the reference to an open tree, given what it was opened by.

    Raises ValueError for a file that is compressed as a whole.
    """
    if checkpoint.format in (MSGPACK_GZ.name, MSGPACK_ZST.name):
        raise ValueError(
            f"{location} is compressed as a whole, and each worker would decompress all of it: "
            "leave out executor=, part= and journal= (--workers, --part, --journal), or convert it "
            "to a directory first"
        )
    location = absolute_location(location)
    return TreeReference(location, prefix, _digest(checkpoint, location))


def require_current(checkpoint: Checkpoint) -> None:
    """Raise ProcessError if a checkpoint, which workers read too, was replaced meanwhile."""
    if not checkpoint.is_current():
        raise ProcessError(
            f"{checkpoint.path} was replaced while workers read it: call again, with another "
            "journal or none"
        )


def _digest(checkpoint: Checkpoint, location: Location) -> str:
    """Return a digest of an index: of the types of its leaves, and of its files.

    A directory of packs has files of other names after each save. Of a single file the time of its
    last change counts too.
    """
    index = checkpoint.index
    leaves = [(leaf.key_path, leaf.kind, leaf.shape, leaf.dtype) for leaf in index.leaves]
    sources = [(each.name, each.size_bytes, each.header_digest) for each in index.sources]
    changed = changed_ns(location)
    if changed:
        sources = [("", *each[1:]) for each in sources]  # its path may be written in another way
    return digest_of(repr((leaves, sources, changed)).encode(errors="surrogatepass")).hex()
