"""A tree of a checkpoint as a value, by which another process opens the same tree."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.encoding.digests import digest_of
from cordwood.errors import CordwoodError, ProcessError, UnsupportedFormatError
from cordwood.formats.table import MSGPACK_GZ, MSGPACK_ZST
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.storage.file_stamps import file_stamps
from cordwood.storage.locations import Location
from cordwood.storage.paths import absolute_location


class TreeReference(NamedTuple):
    """A tree of a checkpoint.

    Attributes:
        location: the checkpoint, an absolute path or a URL.
        prefix: the prefix of the tree, as for `open`.
        identity: of the tree, see `_identity`.
    """

    location: Location
    prefix: str | None
    identity: str

    def open(self) -> Checkpoint:
        """Open the tree.

        Raises ProcessError if it is another one than that of the process that made the reference.
        """
        checkpoint = self._opened()
        if checkpoint is None:
            raise ProcessError(
                f"{self.location}: a worker sees another checkpoint there than the call that has "
                "sent it: all workers must see the same files under this path, and nothing may "
                "replace or change the checkpoint meanwhile; call again once that is so"
            )
        return checkpoint

    def require_current(self) -> None:
        """Raise ProcessError if the tree, which workers read too, was replaced meanwhile."""
        try:
            checkpoint = self._opened()
        except (CordwoodError, FileNotFoundError, NotADirectoryError) as e:
            raise _replaced(self.location) from e
        if checkpoint is None:
            raise _replaced(self.location)
        checkpoint.close()

    def _opened(self) -> Checkpoint | None:
        """Return the tree, open; None if it is another one."""
        checkpoint = open_at(self.location, prefix=self.prefix)
        try:
            if _identity(checkpoint, self.location) == self.identity:
                return checkpoint
        except BaseException:
            checkpoint.close()
            raise
        checkpoint.close()
        return None


def _replaced(location: Location) -> ProcessError:
    return ProcessError(
        f"{location} was replaced while workers read it, or files in it were changed or added: "
        "call again; tasks of the old files are not taken from a journal"
    )


def refer_to_tree(checkpoint: Checkpoint, location: Location, prefix: str | None) -> TreeReference:
    """Return the reference to an open tree, given what it was opened by.

    Raises ValueError for a file that is compressed as a whole; UnsupportedFormatError where nothing
    tells whether the files were replaced.
    """
    if checkpoint.format in (MSGPACK_GZ.name, MSGPACK_ZST.name):
        raise ValueError(
            f"{location} is compressed as a whole, and each worker would decompress all of it: "
            "leave out executor=, part= and journal= (--workers, --part, --journal), or convert it "
            "to a directory first"
        )
    location = absolute_location(location)
    identity = _identity(checkpoint, location)
    if identity is None:
        raise UnsupportedFormatError(
            f"{location}: its files have no digests, and the server does not tell whether they "
            "were replaced, so workers could read two versions: leave out executor=, part= and "
            "journal= (--workers, --part, --journal), or download it first"
        )
    return TreeReference(location, prefix, identity)


def _identity(checkpoint: Checkpoint, location: Location) -> str | None:
    """Return a digest by which a tree is the same for all processes, and no other one is.

    It is of the leaves, with their Python values, and of the digests of all files, against which
    what is read is checked. Where a file has none, it is of the stamps of all files. None if there
    are none of these either.
    """
    index = checkpoint.index
    digests = [each.header_digest or each.digests for each in index.sources]
    contents: object = [each.size_bytes for each in index.sources], digests
    if not digests or None in digests:
        stamps = file_stamps(checkpoint._reader.location or location)
        if stamps is None:
            return None
        contents = sorted(stamps.items())
    identity = repr((index.structure, index.leaves, [*index.metadata.items()], contents))
    return digest_of(identity.encode(errors="surrogatepass")).hex()
