"""The storage of a step whose files lie in several places, which can only be read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.index import Source
from cordwood.io.open_files import ReadableFile
from cordwood.io.reopened_file import MAX_OPEN_FILES
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.locations import HeldStep, Holder, LocalPath, Url
from cordwood.storage.peers.held_file import HeldFile
from cordwood.storage.peers.peer_file import PeerConnections, PeerFile
from cordwood.storage.peers.peer_step import PeerStep
from cordwood.storage.read_only_storage import ReadOnlyStorage
from cordwood.storage.storage_protocol import NamingRules
from cordwood.threads.log import log


def held_is_read_only(location: LocalPath) -> UnsupportedFormatError:
    """Return the error for a call that would write to a step that several places hold."""
    return UnsupportedFormatError(f"{location}: a step that several places hold can only be read")


class HeldStorage(ReadOnlyStorage):
    """A step, read as if all of its files were in one directory.

    Args:
        location: its path, for messages.
        step: where its files lie.
        rules: the naming rules of its format.
    """

    def __init__(self, location: LocalPath, step: HeldStep, rules: NamingRules) -> None:
        self.name = str(location)
        self.location = location
        self._step = step
        self._rules = rules
        self._connections = PeerConnections()
        self._directories: dict[LocalPath, LocalDirectory] = {}

    def read_only(self) -> UnsupportedFormatError:
        return held_is_read_only(self.location)

    def read_index(self) -> bytes | None:
        if self._step.unread:
            raise CorruptionError(f"{self.name}: {self._step.unread}")
        return self._step.index

    def read_sidecar(self, name: str) -> bytes | None:
        return self.read_index() if name == self._rules.index_name else None

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        step, are_many = self._step, len(sources) > MAX_OPEN_FILES

        def open_at(place: Holder, source: Source) -> ReadableFile:
            return self._open_at(place, source, keep_open=not are_many)

        return [
            HeldFile(
                f"{source.name} of {self.name}",  # no path: it may not be there
                source,
                step.places.get(source.name, ()),
                step.failed,
                open_at,
                self._report,
            )
            for source in sources
        ]

    def missing(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []  # there is no pool

    def names(self) -> list[str]:
        return sorted([self._rules.index_name, *self._step.places])

    def _open_at(self, place: Holder, source: Source, *, keep_open: bool) -> ReadableFile:
        if isinstance(place, PeerStep):
            return PeerFile(place, source.name, source.size_bytes, self._connections)
        if isinstance(place, Url):
            return _file_in_store(place, source, self._rules)
        if keep_open:
            (file,) = LocalStorage(place, self._rules).open([source])
            return file
        if place not in self._directories:
            self._directories[place] = LocalDirectory(place)
        return self._directories[place].file(source.name, source.size_bytes)

    def _report(self, place: Holder, error: Exception) -> None:
        """Report the first failure of a place; others are asked before it from now on."""
        is_first = place not in self._step.failed
        self._step.failed.add(place)
        if not is_first:
            log.debug("%s: %s failed again: %s", self.name, place, error)
        elif self._step.on_problem is not None:
            self._step.on_problem(str(place), error)
        else:
            log.warning("%s: %s failed, and is asked last from now on: %s", self.name, place, error)


def _file_in_store(url: Url, source: Source, rules: NamingRules) -> ReadableFile:
    """Return a file of a step in an object store, where it may lie in the pool of the run.

    Raises CorruptionError if the step there has no such file.
    """
    from cordwood.storage.object_stores.object_storage import ObjectStorage

    store = ObjectStorage(url, rules)
    for name in rules.kept_files(store.read_index()):
        if name.rpartition("/")[2] == source.name:
            (file,) = store.open([source._replace(name=name)])
            return file
    raise CorruptionError(f"{url}: the step has no file {source.name}")
