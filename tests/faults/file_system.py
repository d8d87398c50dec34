"""A model of a file system: the effects of system calls, and what a power cut may leave of them.

docs/design/0011-transactions.md has the model in words. An effect is one change of the names in a
directory, of the bytes of a file, or a flush. A flush of a directory keeps all earlier changes of
its names; a flush of a file keeps its bytes, and no name. What is not flushed may be lost, each
effect by itself and in any order.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from tests.old_files import date_back

LINK = b"\0a symbolic link to "  # begins the contents of one
ROOT = 0  # the inode of the directory that the model begins at


class Names(NamedTuple):
    """Changes of names in one directory, which are kept or lost together."""

    folder: int
    inodes: tuple[tuple[str, int | None], ...]  # None: the name is removed


class Bytes(NamedTuple):
    """Bytes that were written to a file."""

    file: int
    offset: int
    data: bytes


class Size(NamedTuple):
    """Space that was reserved for a file, which makes it longer."""

    file: int
    size_bytes: int


class Flush(NamedTuple):
    """A flush of a file or a directory."""

    inode: int


Effect: TypeAlias = Names | Bytes | Size | Flush

# What is left of the bytes of a file that were not flushed.
BytesLeft: TypeAlias = Literal["all", "none", "zeros", "first half", "last write"]
BYTES_LEFT: tuple[BytesLeft, ...] = ("all", "none", "zeros", "first half", "last write")


class Trace(NamedTuple):
    """A directory, and the effects of the calls that were made in it."""

    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]  # those that were there, and new ones, which are empty
    effects: list[Effect]


class Disk(NamedTuple):
    """The contents of the directory: all that a process can see."""

    folders: Mapping[str, int]  # by path: the inode
    files: Mapping[str, tuple[int, bytes]]  # by path: the inode and the bytes

    @property
    def key(self) -> frozenset[object]:
        """A value that is equal for equal contents."""
        return frozenset([*self.folders, *[(path, *file) for path, file in self.files.items()]])


class Pending(NamedTuple):
    """The effects before a moment that no flush has kept."""

    names: tuple[int, ...]  # positions of `Names` among the effects
    files: tuple[int, ...]  # inodes of files with bytes that are not flushed


def scan(folder: str) -> tuple[Trace, dict[tuple[int, int], int]]:
    """Return a trace without effects that begins with a directory, and its inodes by (dev, ino)."""
    trace = Trace({}, {}, [])
    inodes: dict[tuple[int, int], int] = {}
    for path, _, names in os.walk(folder):
        inodes[inode_key(os.stat(path))] = len(inodes)
        for name in names:
            inodes.setdefault(inode_key(os.lstat(os.path.join(path, name))), len(inodes))
    for path, inner, names in os.walk(folder):
        entries = {n: inodes[inode_key(os.lstat(os.path.join(path, n)))] for n in [*inner, *names]}
        trace.folders[inodes[inode_key(os.stat(path))]] = entries
        for name in names:
            trace.files[entries[name]] = contents(os.path.join(path, name))
    return trace, inodes


def contents(path: str) -> bytes:
    """Return the bytes of a file, or LINK and the target of a symbolic link."""
    if os.path.islink(path):
        return LINK + os.readlink(path).encode()
    with open(path, "rb") as file:
        return file.read()


def inode_key(status: os.stat_result) -> tuple[int, int]:
    """Return what identifies an inode while it exists."""
    return status.st_dev, status.st_ino


class Replay:
    """The states of a trace that has ended."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._by_file: dict[int, list[int]] = defaultdict(list)  # positions of effects
        for position, effect in enumerate(trace.effects):
            match effect:
                case Bytes(inode) | Size(inode) | Flush(inode):
                    self._by_file[inode].append(position)
        self._bytes: dict[tuple[int, int, BytesLeft], bytes] = {}

    def pending_at(self, moment: int) -> Pending:
        """Return what may be lost after the first `moment` effects."""
        names: list[int] = []
        files: dict[int, None] = {}
        for position, effect in enumerate(self.trace.effects[:moment]):
            match effect:
                case Names():
                    names.append(position)
                case Bytes(file) | Size(file):
                    files[file] = None
                case Flush(inode):
                    files.pop(inode, None)
                    names = [each for each in names if self._folder(each) != inode]
        return Pending(tuple(names), tuple(files))

    def _folder(self, position: int) -> int:
        effect = self.trace.effects[position]
        assert isinstance(effect, Names)
        return effect.folder

    def disk_at(
        self,
        moment: int,
        lost: frozenset[int] = frozenset(),
        bytes_left: Mapping[int, BytesLeft] | None = None,
    ) -> Disk:
        """Return the contents of the directory after a power cut.

        Args:
            moment: how many effects came before the cut.
            lost: positions of those changes of names that are lost.
            bytes_left: of files, what is left of the bytes that were not flushed; "all" if not
                given.
        """
        folders = {inode: dict(names) for inode, names in self.trace.folders.items()}
        for position, effect in enumerate(self.trace.effects[:moment]):
            if isinstance(effect, Names) and position not in lost:
                for name, inode in effect.inodes:
                    if inode is None:
                        folders[effect.folder].pop(name, None)
                    else:
                        folders[effect.folder][name] = inode
        paths: dict[str, int] = {}
        files: dict[str, tuple[int, bytes]] = {}
        for path, inode in _walk(folders, ROOT, ""):
            if inode in folders:
                paths[path] = inode
            else:
                left = (bytes_left or {}).get(inode, "all")
                files[path] = (inode, self._bytes_of(inode, moment, left))
        return Disk(paths, files)

    def _bytes_of(self, file: int, moment: int, left: BytesLeft) -> bytes:
        count = bisect_left(self._by_file[file], moment)
        key = (file, count, left)
        if key not in self._bytes:
            effects = [self.trace.effects[each] for each in self._by_file[file][:count]]
            self._bytes[key] = _bytes_after(self.trace.files.get(file, b""), effects, left)
        return self._bytes[key]


def _walk(
    folders: Mapping[int, Mapping[str, int]], folder: int, prefix: str
) -> Iterator[tuple[str, int]]:
    for name, inode in folders[folder].items():
        yield f"{prefix}{name}", inode
        if inode in folders:
            yield from _walk(folders, inode, f"{prefix}{name}/")


def _bytes_after(flushed: bytes, effects: Sequence[Effect], left: BytesLeft) -> bytes:
    """Return the bytes of a file after its effects."""
    writes: list[Bytes | Size] = []
    for effect in effects:
        if isinstance(effect, Bytes | Size):
            writes.append(effect)
        else:
            flushed = _written(flushed, writes)
            writes = []
    size = len(_written(flushed, writes))
    match left:
        case "none":
            writes = []
        case "zeros":
            writes = [Size(0, size)]
        case "first half":
            writes = _first_half(writes)
        case "last write":
            writes = [Size(0, size), *[each for each in writes if isinstance(each, Bytes)][-1:]]
    return _written(flushed, writes)


def _written(data: bytes, writes: Sequence[Bytes | Size]) -> bytes:
    result = bytearray(data)
    for each in writes:
        stop = each.size_bytes if isinstance(each, Size) else each.offset + len(each.data)
        result.extend(bytes(max(0, stop - len(result))))
        if isinstance(each, Bytes):
            result[each.offset : stop] = each.data
    return bytes(result)


def _first_half(writes: Sequence[Bytes | Size]) -> list[Bytes | Size]:
    left = sum(len(each.data) for each in writes if isinstance(each, Bytes)) // 2
    half: list[Bytes | Size] = []
    for each in writes:
        if isinstance(each, Bytes):
            half.append(each._replace(data=each.data[:left]))
            left = max(0, left - len(each.data))
    return half


def write_disk(disk: Disk, folder: str) -> dict[tuple[int, int], int]:
    """Create a directory with these contents, in which files are hard links as on the disk.

    Returns the inodes by (dev, ino), for calls that are recorded there.
    """
    os.makedirs(folder)
    inodes = {inode_key(os.stat(folder)): ROOT}
    for path, inode in sorted(disk.folders.items()):
        os.mkdir(f"{folder}/{path}")
        inodes[inode_key(os.stat(f"{folder}/{path}"))] = inode
    first: dict[int, str] = {}
    for path, (inode, data) in disk.files.items():
        target = f"{folder}/{path}"
        if inode in first:
            os.link(first[inode], target)
            continue
        first[inode] = target
        if data.startswith(LINK):
            os.symlink(data.removeprefix(LINK).decode(), target)
        else:
            with open(target, "wb") as file:
                file.write(data)
            date_back(target)
        inodes[inode_key(os.lstat(target))] = inode
    return inodes
