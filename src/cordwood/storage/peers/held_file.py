"""A file that several places hold, read from the first one that does not fail."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from cordwood.errors import CorruptionError, FormatError, StorageError
from cordwood.index import Source
from cordwood.io.open_files import Closable, ReadableFile, require_range
from cordwood.message_text import counted
from cordwood.storage.locations import Holder, LocalPath

T = TypeVar("T")

# Opens the file of a source at a place, and says that a place has failed.
OpenAt = Callable[[Holder, Source], ReadableFile]
Report = Callable[[Holder, Exception], None]

_FAILURES = (OSError, CorruptionError, FormatError)


class UnreachableFileError(StorageError):
    """Every place that should hold a file has failed, and some of them may give it later."""


class HeldFile(Closable):
    """A file of a step, and the places that hold it.

    It is read from one place, until a read there fails or `distrust` says that the bytes were not
    those of the index. Then the next place takes over, once each; only when all have failed the
    reader gets an error: UnreachableFileError, or CorruptionError if each place has another file.

    Args:
        name: for messages.
        source: the file, as the index has it.
        places: where it is held, the nearest first.
        failed: the places that failed for other files, which are asked last.
        open_at: opens it at a place.
        report: called with each failure.
    """

    name: str
    size_bytes: int

    def __init__(
        self,
        name: str,
        source: Source,
        places: Sequence[Holder],
        failed: set[Holder],
        open_at: OpenAt,
        report: Report,
    ) -> None:
        self.name = name
        self.size_bytes = source.size_bytes
        self._source = source
        self._places = places
        self._failed = failed
        self._open_at = open_at
        self._report = report
        self._errors: dict[Holder, Exception] = {}  # of the places that failed for this file
        self._files: dict[Holder, ReadableFile] = {}
        self._lock = threading.Lock()
        self._last = threading.local()  # the place that this thread has read from

    @property
    def latency_bound(self) -> bool:  # type: ignore[override]
        """True if it is read from another machine now."""
        return not isinstance(self._place(), LocalPath)

    def read(self, offset: int, length: int) -> bytes:
        require_range(self, offset, length)
        return self._read_somewhere(lambda file: file.read(offset, length))

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        self._read_somewhere(lambda file: file.read_into(offset, views))

    def map(self) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.name}: a file that other processes hold cannot be mapped; load it without "
            "mmap=True"
        )

    def distrust(self, error: Exception) -> bool:
        place: Holder | None = getattr(self._last, "place", None)
        if place is None:
            return False
        self._give_up(place, error)
        return True

    def close(self) -> None:
        with self._lock:
            files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def _read_somewhere(self, read: Callable[[ReadableFile], T]) -> T:
        while (place := self._place()) is not None:
            self._last.place = place
            try:
                return read(self._file_at(place))
            except _FAILURES as e:
                self._give_up(place, e)
        self._last.place = None
        raise self._failure()

    def _failure(self) -> CorruptionError | UnreachableFileError:
        """Return the error for a file that no place has given."""
        if not self._errors:
            return CorruptionError(f"{self.name}: no place holds it")
        lines = [f"  {place}: {_text_of(error)}" for place, error in self._errors.items()]
        places = counted(len(lines), "place")
        text = "\n".join(
            [f"{self.name}: it cannot be read from the {places} that should hold it:", *lines]
        )
        if any(isinstance(error, OSError) for error in self._errors.values()):
            return UnreachableFileError(errno.EIO, text)
        return CorruptionError(text)

    def _place(self) -> Holder | None:
        """Return the place to read from; None if all have failed."""
        remaining = [place for place in self._places if place not in self._errors]
        reliable = (place for place in remaining if place not in self._failed)
        return next(reliable, remaining[0] if remaining else None)

    def _file_at(self, place: Holder) -> ReadableFile:
        with self._lock:
            if place not in self._files:
                self._files[place] = self._open_at(place, self._source)
            return self._files[place]

    def _give_up(self, place: Holder, error: Exception) -> None:
        with self._lock:
            if place in self._errors:  # another thread has met it too
                return
            self._errors[place] = error
        self._report(place, error)


def _text_of(error: Exception) -> str:
    """Return the text of an error, without the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
