"""System calls whose effects on one directory are recorded, for `tests.faults.file_system`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Hashable
from typing import Any

from tests.faults.file_system import (
    Bytes,
    Flush,
    Names,
    Size,
    Trace,
    contents,
    inode_key,
    scan,
)
from tests.faults.systems import LackingSystem


class RecordingSystem(LackingSystem):
    """The real system calls. The effects of those in a directory are appended to a trace.

    `acknowledged` has the number of effects at the moment when a part of the call was done, and
    what was saved.

    Args:
        folder: the directory.
        trace: a trace that goes on here; None: a new one.
        inodes: the inodes of that trace by (dev, ino). They cover the whole directory.
        lacks: names of calls that fail, as `LackingSystem` takes them.
    """

    def __init__(
        self,
        folder: str,
        trace: Trace | None = None,
        inodes: dict[tuple[int, int], int] | None = None,
        lacks: Collection[str] = (),
    ) -> None:
        super().__init__(lacks)
        self.acknowledged: dict[Hashable, tuple[int, Any]] = {}
        new_trace, new_inodes = scan(folder)
        self.trace = new_trace if trace is None else trace
        self._inodes = new_inodes if inodes is None else inodes
        self._recording = threading.RLock()

    def _make(self, number: int, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        record = getattr(self, f"_record_{name}", None)
        if record is None or name in self._lacks:
            return super()._make(number, name, call, args)
        with self._recording:  # effects are recorded in the order in which they happen
            return record(call, *args)

    def _record_open(self, call: Callable[..., Any], path: str, flags: int, *mode: int) -> int:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        fd: int = call(path, flags, *mode)
        if is_new:
            inode = self._new_inode(os.fstat(fd))
            self.trace.files[inode] = b""
            self._change((path, None, inode))
        return fd

    def _record_mkdir(self, call: Callable[..., Any], path: str, *mode: int) -> None:
        call(path, *mode)
        inode = self._new_inode(os.lstat(path))
        self.trace.folders[inode] = {}
        self._change((path, None, inode))

    def _record_fallocate(self, call: Callable[..., Any], fd: int, size_bytes: int) -> None:
        call(fd, size_bytes)
        inode = self._inode(os.fstat(fd))
        if inode is not None:
            self.trace.effects.append(Size(inode, size_bytes))

    def _record_pwrite(
        self, call: Callable[..., Any], fd: int, data: memoryview, offset: int
    ) -> int:
        count: int = call(fd, data, offset)
        inode = self._inode(os.fstat(fd))
        if inode is not None:
            self.trace.effects.append(Bytes(inode, offset, bytes(data[:count])))
        return count

    def _record_fsync(self, call: Callable[..., Any], fd: int) -> None:
        call(fd)
        inode = self._inode(os.fstat(fd))
        if inode is not None:
            self.trace.effects.append(Flush(inode))

    def _record_replace(self, call: Callable[..., Any], source: str, target: str) -> None:
        inode = self._inode(os.lstat(source))
        call(source, target)
        self._change((target, None, inode), (source, None, None))

    _record_rename_to_free_name = _record_replace

    def _record_exchange(self, call: Callable[..., Any], one: str, other: str) -> None:
        inodes = [self._inode(os.lstat(path)) for path in (one, other)]
        call(one, other)
        self._change((one, None, inodes[1]), (other, None, inodes[0]))

    def _record_link(self, call: Callable[..., Any], source: str, target: str) -> None:
        inode = self._inode(os.lstat(source))
        call(source, target)
        self._change((target, None, inode))

    def _record_symlink(self, call: Callable[..., Any], target: str, path: str) -> None:
        call(target, path)
        inode = self._new_inode(os.lstat(path))
        self.trace.files[inode] = contents(path)
        self._change((path, None, inode))

    def _record_unlink(
        self, call: Callable[..., Any], path: str, folder: int | None = None
    ) -> None:
        call(path, folder)
        self._change((path, folder, None))

    def _record_rmdir(self, call: Callable[..., Any], path: str, folder: int | None = None) -> None:
        call(path, folder)
        self._change((path, folder, None))

    def _change(self, *changes: tuple[str, int | None, int | None]) -> None:
        """Record changes: the path, the open directory that it is relative to, and the inode.

        Those in one directory are one effect. Of a rename from one directory into another the new
        name and the removal of the old one may be lost apart.
        """
        by_folder: dict[int, list[tuple[str, int | None]]] = {}
        for path, folder, inode in changes:
            parent, name = os.path.split(path)
            inner = self._inode(os.stat(parent or ".", dir_fd=folder))
            if inner is not None:
                by_folder.setdefault(inner, []).append((name, inode))
        for inner, names in by_folder.items():
            self.trace.effects.append(Names(inner, tuple(names)))

    def _inode(self, status: os.stat_result) -> int | None:
        return self._inodes.get(inode_key(status))

    def _new_inode(self, status: os.stat_result) -> int:
        inode = 1 + max([*self.trace.files, *self.trace.folders, *self._inodes.values()])
        self._inodes[inode_key(status)] = inode
        return inode
