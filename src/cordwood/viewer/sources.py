"""The checkpoints that the viewer shows, opened on demand."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from cordwood.errors import FileChangedError, IncompleteCheckpointError
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.detect_checkpoint import detect_checkpoint
from cordwood.storage.locations import LocalPath, Location, parse_location

Kind: TypeAlias = Literal["checkpoint", "diff", "run"]

_MAX_OPEN = 4


class OpenArguments(NamedTuple):
    """The arguments of `cordwood.open` for each source."""

    format: str | None = None
    prefix: str | None = None
    scratch: LocalPath | None = None


@dataclass(eq=False)
class _Entry:
    """An open checkpoint, and the number of threads that use it."""

    checkpoint: Checkpoint | None = None
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False, repr=False)
class Sources:
    """The checkpoints that the viewer shows, by name; at most four are open and unused.

    Threads may use it at the same time.

    Attributes:
        kind: what was opened: one checkpoint, a difference of two, or a run.
        paths: the location of each source. The names are "a" and "b", or the entries of a run.
        root: the location of a run; None for checkpoints.
        arguments: how sources are opened.
    """

    kind: Kind
    paths: Mapping[str, Location]
    root: Location | None
    arguments: OpenArguments
    _entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)  # the last used last
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def path(self, name: str) -> Location:
        """Return the location of a source. Raises KeyError with the names that there are."""
        try:
            return self.paths[name]
        except KeyError:
            names = ", ".join(list(self.paths)[:10])
            raise KeyError(f"there is no source {name!r:.80}; expected one of {names}") from None

    @contextmanager
    def checkpoint(self, name: str) -> Iterator[Checkpoint]:
        """Yield the open checkpoint of a source; it stays open at least until the block ends.

        A file that has changed since it was opened is opened again by the next call.
        Raises KeyError for a name that does not exist, and whatever `cordwood.open` does.
        """
        path = self.path(name)
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            entry.users += 1
            self._entries.move_to_end(name)
        try:
            with entry.opening:
                if entry.checkpoint is None:
                    entry.checkpoint = open_at(path, **self.arguments._asdict())
            yield entry.checkpoint
        except FileChangedError:
            with self._lock:  # the next request opens it again
                if self._entries.get(name) is entry:
                    del self._entries[name]
            raise
        finally:
            with self._lock:
                entry.users -= 1
                is_dropped = not entry.users and self._entries.get(name) is not entry
            if is_dropped and entry.checkpoint is not None:
                entry.checkpoint.close()
            self._close_unused(_MAX_OPEN)

    def _close_unused(self, most: int) -> None:
        """Close checkpoints that no thread uses, the least recently used first, down to few."""
        with self._lock:
            unused = [name for name, entry in self._entries.items() if not entry.users]
            count = max(0, len(self._entries) - most)
            closing = [self._entries.pop(name) for name in unused[:count]]
        for entry in closing:
            if entry.checkpoint is not None:
                entry.checkpoint.close()

    def list_steps(self) -> None:
        """List the steps of a run again: a job may save and delete some meanwhile.

        Raises FileNotFoundError if there are none any more.
        """
        assert self.root is not None
        self.paths = _paths_of(self.root, detect_checkpoint(self.root).steps)

    def close(self) -> None:
        """Close all checkpoints that no thread uses."""
        self._close_unused(0)


def _paths_of(root: Location, steps: Sequence[str]) -> dict[str, Location]:
    return {step: root.child(step) for step in steps}


def open_sources(path: str, other: str | None, arguments: OpenArguments) -> Sources:
    """Open what the viewer shows: a checkpoint, two, or the steps of a run.

    Each checkpoint is opened now, so that an error is raised here; the steps of a run are not.

    Raises:
        ValueError: one of two paths is a directory of steps.
        Exception: whatever `cordwood.open` raises.
    """
    paths = {"a": path} if other is None else {"a": path, "b": other}
    locations = {name: parse_location(each) for name, each in paths.items()}
    sources = Sources("checkpoint" if other is None else "diff", locations, None, arguments)
    for name, each in locations.items():
        try:
            with sources.checkpoint(name):
                pass
        except IncompleteCheckpointError:
            detected = detect_checkpoint(each)
            if detected.format != "steps":
                raise
            sources.close()
            if other is not None:
                raise ValueError(
                    f"{each}: expected a checkpoint to compare, found {detected.description}; "
                    f"name one of its steps, such as {each.child(detected.steps[-1])}"
                ) from None
            return Sources("run", _paths_of(each, detected.steps), each, arguments)
        except BaseException:
            sources.close()
            raise
    return sources
