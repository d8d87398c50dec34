"""The record of a verification, by which a later call continues it."""

from __future__ import annotations

import os

from cordwood.encoding.digests import digest_of
from cordwood.index import Digests

_HEAD = b"cordwood verify: found whole\n"  # the first line of a record, by which it is recognized


class VerifyRecord:
    """A file with one line for each source that was verified without errors.

    Raises ValueError if the path is a file of another kind, which would be lost.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = _read_lines(path)

    def has(self, name: str, size_bytes: int, digests: Digests) -> bool:
        """Return True if an earlier call has verified a source without errors."""
        return _mark(name, size_bytes, digests) in self._lines

    def add(self, name: str, size_bytes: int, digests: Digests) -> None:
        """Add a source without errors."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o644)
        try:
            head = b"" if os.fstat(fd).st_size else _HEAD
            os.write(fd, head + f"{_mark(name, size_bytes, digests)}\n".encode())
        finally:
            os.close(fd)

    def delete(self) -> None:
        """Delete the record once all is verified, so that the next call starts again."""
        if os.path.exists(self._path):
            os.unlink(self._path)


def _read_lines(record: str) -> frozenset[str]:
    if not os.path.exists(record):
        return frozenset()
    with open(record, "rb") as file:
        data = file.read(len(_HEAD))
        if data not in (b"", _HEAD):
            raise ValueError(
                f"resume={record!r}: expected a new file, or one that an interrupted verify has "
                "left; this is another file, and was left as it is: name another path"
            )
        data += file.read()
    end = data.rfind(b"\n") + 1
    if end < len(data):  # drop a partial last line, or the next line would be appended to it
        os.truncate(record, end)
    return frozenset(data[len(_HEAD) : end].decode(errors="replace").split("\n")) - {""}


def _mark(name: str, size_bytes: int, digests: Digests) -> str:
    """Return the line of the record for a source: a digest of its name, size and digests."""
    what = f"{name}\0{size_bytes}\0{digests.start}\0".encode(errors="surrogatepass")
    return digest_of(what + digests.values).hex()
