"""Atomic and durable replacement of a directory.

The new directory, the staging directory, is created beside the old one, under a unique name and a
lock. Then, under a lock of the parent directory: files that the save does not replace are linked
in, everything is flushed, the two directories are exchanged, and the parent is flushed. Until the
exchange the old directory is whole and untouched; after the last flush the new one survives a power
cut. There is a directory at the path at every moment.

A save that was killed leaves its staging directory unlocked: the next save of the same name removes
it. An old directory that a reader still holds under a shared lock is removed by a later save, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import NamedTuple
from weakref import finalize

from cordwood.errors import NotACheckpointError
from cordwood.io.chunk_codecs import Encoder
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.stale_handles import retry_stale
from cordwood.plan.file_plan import FilePlan, PlannedFile
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import SaveStep, WritableFile
from cordwood.storage.directories import (
    list_entries,
    make_ancestors,
    remove_directories,
    remove_tree,
    sync_directory,
)
from cordwood.storage.file_rights import Rights, limit_folder, make_private, rights_of
from cordwood.storage.locks.file_locks import (
    GONE_ERRORS,
    is_open_file_at,
    opened_for_lock,
    unlock,
    wait_and_lock,
)
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.paths import (
    LOCK_NAME,
    old_name,
    stage_path,
    temporary_path,
    temporary_prefix,
)
from cordwood.storage.removal.list_tree import Listing, list_tree
from cordwood.storage.staging.collect_stages import FOLDER_FLAGS, collect_stages, remove_unused
from cordwood.storage.staging.exchange_directories import exchange_directories, recover_directory
from cordwood.storage.storage_protocol import wait_until_visible
from cordwood.storage.syscalls import open_directory_fd, open_fd, opened_fd, write_all
from cordwood.storage.write_chunk_files import WrittenFile, write_new_files
from cordwood.storage.write_files import fill_file
from cordwood.threads.stop_check import never_stop, stop_check


class DirectoryChange(NamedTuple):
    """The last changes of a staging directory, once it is known what it replaces."""

    # Returns the names of the old directory that the new one does not keep, given the path of a
    # directory in it ('' for itself) and the names there. None: nothing is kept.
    dropped: Callable[[str, set[str]], set[str]] | None = None
    moves: Sequence[tuple[str, str]] = ()  # directories in the new one to rename
    last_file: tuple[str, bytes] | None = None  # the name and bytes of the index


class StagingDirectory(SaveStep):
    """A save that replaces a directory: a `Transaction`, see `storage.storage_protocol`.

        stage = StagingDirectory(path)
        with stage.abandon_on_error():
            written = stage.write(files, leaves)
            stage.commit(update)

    Several processes can fill one: one of them creates it, and commits or abandons it; its random
    name is the probe that the others look for. In a thread where no interrupts come
    (`run_in_worker`): they could leave a lock held.

    Args:
        path: the directory that it will replace.
        encode: compresses a chunk; None for raw chunks.
        page_cache: True if the files may stay in the page cache, where they are few.
        timeout_seconds: the longest wait for a lock of another process; None: no limit.
        resumes: the id of one that a killed copy may have left, to go on from; "": a new id.

    The constructor raises:
        NotADirectoryError: `path` is a file.
        NotACheckpointError: `path` is a mount point.

    `abandon_on_error` turns an OSError in its block into that of `explain_errors`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        encode: Encoder | None = None,
        timeout_seconds: float | None = None,
        page_cache: bool = False,
        resumes: str = "",
    ) -> None:
        self._encode = encode
        self._page_cache = page_cache
        self._timeout_seconds = timeout_seconds
        self._is_shared = False
        self._lock = -1
        self._unlock: finalize[..., StagingDirectory] | None = None
        self.asked = os.fspath(path)
        self.target = _resolve(self.asked)
        self.path = ""
        self._parent, self._name = os.path.split(self.target)
        self._resumed = stage_path(self.target, resumes) if resumes else ""
        self._made: list[str] = []
        self._rights: Rights | None = None  # of the directory that it will replace
        self._unsynced: dict[str, None] = {}

    def begin(self) -> None:
        """Create and lock it."""
        make_ancestors(self._parent, self._made)
        self.doing = "removing what a killed save left"
        collect_stages(self.target, dry_run=False, spared=self._resumed)
        self.doing = "creating a directory beside it"
        while not self._create():
            self.close()
        self._unsynced[self.path] = None
        self.doing = "writing"

    def _create(self) -> bool:
        """Create and lock it; return False if another save has removed it as a killed save's."""
        calls = syscalls.current()
        self.path = self._resumed or temporary_path(self._parent, self._name, "stage")
        self._rights = rights_of(self.target)
        mode = 0o777 if self._rights is None else self._rights.mode & 0o777 | 0o700
        try:
            calls.mkdir(self.path, mode)
        except FileExistsError:
            if not self._resumed:
                raise
        try:
            # A link in its place is not followed: its target would get the rights of the directory.
            self._lock = open_fd(self.path, FOLDER_FLAGS | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        # Not `__del__`: it would run for every staging directory, and swallow a Ctrl-C.
        self._unlock = finalize(self, unlock, self._lock)
        self._unlock.atexit = False  # in a forked child it would release the parent's lock
        try:
            wait_and_lock(self._lock, self.path, timeout_seconds=self._timeout_seconds)
        except OSError as e:
            if e.errno not in GONE_ERRORS:
                raise
            self._unlock()
            return False
        make_private(self._lock, self._rights)
        return is_open_file_at(self._lock, self.path)

    def create_probe(self) -> str:
        self._is_shared = True
        self.begin()
        return os.path.basename(self.path)

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        """Join the one of that name, if it is visible or becomes so in that time."""
        path = f"{self._parent}/{probe}"
        if not wait_until_visible(
            lambda: os.path.lexists(path), path, timeout_seconds=timeout_seconds
        ):
            return False
        self._is_shared = True
        self.path = path
        self.doing = "writing"
        return True

    def write(self, files: Sequence[PlannedFile], leaves: Leaves) -> list[WrittenFile]:
        """Write new files, with their directories. When this returns, their bytes are on the disk.

        `commit` flushes the directories; a process that does not commit calls `sync_directories`.
        """
        if not self.path:
            self.begin()
        self.make_directories(dict.fromkeys([os.path.dirname(file.path) for file in files]))
        written = write_new_files(
            self.path, files, leaves, self._encode, page_cache=self._page_cache
        )
        if self._is_shared:
            for file in files:
                self.mark_unsynced(file.path)  # another process may have created its directory
        return written

    def make_directories(self, paths: Iterable[str]) -> None:
        """Make directories in it, with their parents; none of them is flushed yet."""
        for path in paths:
            for folder in _with_parents(path):
                self.make_directory(folder)

    def make_directory(self, path: str) -> bool:
        """Make one directory in it; return False if it exists already."""
        folder = f"{self.path}/{path}"
        if folder in self._unsynced:
            return False
        try:
            syscalls.current().mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
            return False
        self._unsynced[folder] = None
        self.mark_unsynced(path)
        return True

    def mark_unsynced(self, path: str) -> None:
        """Mark the directory of a path for flushing, because a name in it was added or removed."""
        self._unsynced[os.path.dirname(f"{self.path}/{path}")] = None

    def size_of(self, path: str) -> int | None:
        """Return the size of a file in it; None if there is none."""
        try:
            return os.stat(f"{self.path}/{path}", follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def create_file(self, path: str, chunks: Iterable[bytes], *, mode: int = 0o666) -> None:
        """Write a new file in it, and flush the file to the disk."""
        offset = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with opened_fd(f"{self.path}/{path}", flags, mode=mode) as fd:
            for chunk in chunks:
                write_all(fd, memoryview(chunk), offset)
                offset += len(chunk)
            syscalls.current().fsync(fd)
        self.mark_unsynced(path)

    def write_planned(self, name: str, plan: FilePlan, leaves: Leaves, *, direct: bool) -> None:
        """Write the new file that `plan` describes in it, and flush the file to the disk."""
        file = WritableFile(f"{self.path}/{name}")
        file.doing = "writing"
        try:
            file.open()
            fill_file(file, plan, leaves, direct=direct)
            file.doing = "flushing it to the disk"
            syscalls.current().fsync(file.fd)
        except OSError:
            self.doing = f"{file.doing} ({name})"
            raise
        finally:
            file.close()
        self.mark_unsynced(name)

    def put_file(self, source: str, target: str) -> None:
        """Rename a file within it, over the one that may be at the target."""
        self.make_directories([os.path.dirname(target)])
        syscalls.current().replace(f"{self.path}/{source}", f"{self.path}/{target}")
        self.mark_unsynced(source)
        self.mark_unsynced(target)

    def remove(self, name: str) -> None:
        """Remove a file directly in it; only for the process that created the directory."""
        syscalls.current().unlink(name, self._lock)
        self.mark_unsynced(name)

    def _move(self, source: str, target: str) -> None:
        """Rename a directory within it."""
        if "/" in target:
            self.make_directories([os.path.dirname(target)])
        syscalls.current().replace(f"{self.path}/{source}", f"{self.path}/{target}")
        for folder in [f for f in self._unsynced if f"{f}/".startswith(f"{self.path}/{source}/")]:
            del self._unsynced[folder]
            inner = folder[len(self.path) + 1 + len(source) :]
            self._unsynced[f"{self.path}/{target}{inner}"] = None
        self.mark_unsynced(source)
        self.mark_unsynced(target)

    def sync_directories(self) -> None:
        """Flush every directory that has changed since the last flush."""
        while self._unsynced:
            sync_directory(next(reversed(self._unsynced)))
            self._unsynced.popitem()

    def commit(self, update: Callable[[str | None], DirectoryChange]) -> None:
        """Replace the target by it.

        Args:
            update: called under the lock of the parent with the path of the current directory
                (None: there is none); returns what is still to change in the new one. Files that
                it keeps are linked, also those that come to the old directory meanwhile.

        If `update` raises, nothing is replaced. An exception of `check_stop` ends a wait for a
        lock.
        """
        self.doing = "flushing its directories to the disk"
        self.sync_directories()
        self.doing = "waiting for the lock of its parent directory"
        path = f"{self._parent}/{temporary_prefix(self._name)}lock"
        with ExitStack() as held, locked(path, timeout_seconds=self._timeout_seconds):
            replaced = self._replace(update, held)
        self.close()
        if replaced is not None:
            remove_unused(replaced, replaced=True)

    def _lock_target(self, held: ExitStack) -> None:
        fd = held.enter_context(opened_for_lock(self.target, FOLDER_FLAGS))
        wait_and_lock(fd, self.target, fcntl.LOCK_SH, timeout_seconds=self._timeout_seconds)

    def _replace(
        self, update: Callable[[str | None], DirectoryChange], held: ExitStack
    ) -> str | None:
        """Do the part of `commit` under the lock; return the new path of the old directory.

        `held` then holds a lock of the old one: it stays until the exchange is flushed.
        """
        old = f"{self._parent}/{old_name(self._name)}"
        self.doing = "bringing in what it does not replace"
        recover_directory(self.target, old)
        target_exists = os.path.isdir(self.target)
        if target_exists:
            retry_stale(lambda: self._lock_target(held))
        change = update(self.target if target_exists else None)
        for source, target in change.moves:
            self._move(source, target)
        if target_exists and change.dropped is not None:
            _link_unchanged(self.target, self, change.dropped)
        if change.last_file is not None:
            name, data = change.last_file
            self.create_file(name, [data])
        self.doing = "flushing its directories to the disk"
        self.sync_directories()
        self.doing = "putting it in place"
        limit_folder(self._lock, rights_of(self.target) or self._rights)  # may forbid writing
        replaced = self._put(old, target_exists=target_exists)
        self.path = self.target
        self.doing = "flushing its parent directory to the disk"
        sync_directory(self._parent)
        if replaced is not None and change.dropped is not None:
            self.doing = "bringing in what came to the old directory meanwhile"
            _link_unchanged(replaced, self, change.dropped, missing_only=True)
            self.sync_directories()
        return replaced

    def _put(self, old: str, *, target_exists: bool) -> str | None:
        """Exchange it with the target, if there is one; return the new path of the old one."""
        replaced = None
        if target_exists:
            replaced = exchange_directories(self.path, self.target, old)
        else:
            syscalls.current().replace(self.path, self.target)
        self.in_place = True
        return replaced

    def put_new(self) -> bool:
        """Rename it to its target; return False if something with content has that name by now.

        The caller has flushed what is in it, and holds the lock `naming_lock`.
        """
        try:
            syscalls.current().replace(self.path, self.target)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        self.in_place = True
        self.path = self.target
        return True

    def put_over(self, listing: Listing) -> str | None:
        """Exchange it with the directory that is at its target; return the new path of that one.

        The caller has flushed what is in it, and holds the lock `naming_lock`. Returns None if
        nothing is there.

        Args:
            listing: what is in the directory to replace, as the caller has checked it.

        Raises NotACheckpointError if it is no longer the same: then it stays.
        """
        if not os.path.lexists(self.target):
            return None
        with ExitStack() as held:
            retry_stale(lambda: self._lock_target(held))  # so that no other save removes it
            _require_same(self.target, listing, self.asked)
            limit_folder(self._lock, rights_of(self.target) or self._rights)
            old = f"{self._parent}/{old_name(self._name)}"
            replaced = exchange_directories(self.path, self.target, old)
            try:
                _require_same(replaced, listing, self.asked)
            except BaseException:
                exchange_directories(replaced, self.target, self.path)
                raise
        self.in_place = True
        self.path = self.target
        return replaced

    @property
    def naming_lock(self) -> str:
        """The path of the lock for renames in the parent directory, such as `put_new`."""
        return f"{self._parent}/{LOCK_NAME}"

    def remove_empty(self) -> None:
        """Remove it if no process has a file in it, with the parent directories made for it."""
        remove_directories([*self._made, self.path])
        self.close()

    def close(self) -> None:
        """Release its lock."""
        if self._unlock is not None:
            self._unlock()

    def abandon(self) -> None:
        """Remove it, and the parent directories made for it, unless it is in place."""
        try:
            if not self.in_place:
                if self.path:
                    with stop_check(never_stop):
                        remove_tree(self.path)
                remove_directories(self._made)
        finally:
            self.close()

    @contextmanager
    def abandon_on_error(self) -> Iterator[None]:
        """Abandon it after an exception in the block; raise OSErrors with the current step."""
        try:
            with self.explain_errors(self.asked, what="directory"):
                yield
        except BaseException:
            self.abandon()
            raise


def _require_same(path: str, listing: Listing, asked: str) -> None:
    """Raise NotACheckpointError unless a directory is as it was listed."""
    if list_tree(path) != listing:
        raise NotACheckpointError(
            f"{asked}: it has changed while a new checkpoint was written, and is not replaced; try "
            "again"
        )


def _resolve(path: str) -> str:
    """Return the absolute path without symlinks; refuse what cannot be exchanged."""
    target = os.path.realpath(path)
    try:
        status = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return target
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(
            errno.ENOTDIR, "expected the path of a directory to save, found a file", path
        )
    if os.path.ismount(target):
        raise NotACheckpointError(
            errno.EEXIST,
            "it is a mount point, which cannot be replaced; save to a directory inside of it",
            path,
        )
    return target


_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_COPY_BYTES = 4 << 20


def _link_unchanged(
    source: str,
    stage: StagingDirectory,
    dropped: Callable[[str, set[str]], set[str]],
    *,
    missing_only: bool = False,
) -> None:
    """Link all files of a directory into the staging directory; copy them if links do not work.

    Args:
        source: the old directory.
        stage: the new one.
        dropped: see `DirectoryChange`.
        missing_only: skip files that the new directory has: it is in place already.

    Raises NotACheckpointError if the new directory has another file of the same name.
    """
    stack = [""]
    while stack:
        path = stack.pop()
        entries = list_entries(f"{source}/{path}" if path else source)
        names = set(entries)
        if path and not names:
            _make_folder(source, stage, path)
        for name in sorted(names - dropped(path, names)):
            inner = f"{path}/{name}" if path else name
            if entries[name]:
                stack.append(inner)
                continue
            if path:
                _make_folder(source, stage, path)
            _link(f"{source}/{inner}", stage, inner, missing_only=missing_only)


def _with_parents(path: str) -> Iterator[str]:
    """Return the parents of a relative path, the outermost first, and then the path itself."""
    return accumulate(path.split("/"), "{}/{}".format)


def _make_folder(source: str, stage: StagingDirectory, path: str) -> None:
    """Make a directory and its parents, with the permissions of the old ones."""
    for inner in _with_parents(path):
        if stage.make_directory(inner):
            with open_directory_fd(f"{stage.path}/{inner}") as fd:
                limit_folder(fd, rights_of(f"{source}/{inner}"))


def _link(source: str, stage: StagingDirectory, path: str, *, missing_only: bool) -> None:
    target = f"{stage.path}/{path}"
    if missing_only and os.path.lexists(target):
        return
    try:
        syscalls.current().link(source, target)
    except FileExistsError as e:
        raise NotACheckpointError(
            errno.EEXIST,
            f"it holds {path!r}, which is no part of the checkpoint, where this save has to put "
            "something; move that away, or save to another path",
            stage.asked,
        ) from e
    except FileNotFoundError:
        if not os.path.lexists(source):
            return  # it was removed meanwhile
        raise
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        _copy(source, stage, path)
    stage.mark_unsynced(path)


def _copy(source: str, stage: StagingDirectory, path: str) -> None:
    """Copy a file, for file systems without hard links."""
    if os.path.islink(source) or not os.path.isfile(source):
        raise NotACheckpointError(
            errno.EEXIST,
            f"it holds {path!r}, which is neither file nor directory and cannot be linked here; "
            "move it away, or save to another path",
            stage.asked,
        )
    with opened_fd(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) as fd:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        stage.create_file(path, iter(lambda: os.read(fd, _COPY_BYTES), b""), mode=mode)
