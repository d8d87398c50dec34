"""Replace a directory at once and for good, or not at all.

The new directory is made beside the old one, under a name and a lock of its own. Then, under a
lock of the parent directory: what the save does not replace is linked in, everything is flushed,
the two are exchanged, and the parent is flushed. Until the exchange the old directory is whole
and untouched; after that flush the new one outlives a power cut. There is no moment without one.

Where a file system cannot exchange, the old directory is renamed away first, to a name that
readers know (`locate_directory`), and whoever saves next puts it back if it stands alone.

A save that was killed leaves its stage, unlocked: the next save of the same name removes it. So
it does with an old directory that somebody still reads, who has a shared lock of it.

One file, as the steps of an exchange and the repair of each are read together.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from weakref import finalize

from cordwood.errors import NotACheckpointError, StorageError
from cordwood.io.uninterruptible import StopCheck, never_stop
from cordwood.storage import syscalls
from cordwood.storage.directories import may_remove, remove_tree
from cordwood.storage.file_locks import is_open_file_at, lock, locked, unlock, wait_and_lock
from cordwood.storage.file_transaction import (
    make_ancestors,
    storage_error,
    sync_directory,
    temporary_prefix,
)
from cordwood.storage.permissions import Rights, limit_folder, make_private, rights_of
from cordwood.storage.syscalls import close_all, open_into, write_all

_RANDOM_BYTES = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY)


class StagingDirectory:
    """A directory in the making. `doing` says what, for the message of an error.

        stage = Stage(path)
        with stage.reporting():
            stage.begin()
            ...
            stage.commit(prepare)

    In a thread where no interrupts come (`run_uninterruptible`): they could cost a lock.

    Args:
        path: the directory that it is to become.
        timeout_seconds: how long to wait for locks of others; None: for ever.

    Raises, when it is made:
        NotADirectoryError: `path` is a file.
        NotACheckpointError: `path` is a mount point.

    And within `reporting`: what `storage_error` makes of an OSError.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout_seconds: float | None = None
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._lock: list[int] = []
        self._forgotten: finalize[..., StagingDirectory] | None = None
        self.asked = os.fspath(path)
        self.target = _resolve(self.asked)
        self.path = ""
        self.doing = "creating its directory"
        self.in_place = False
        self._parent, self._name = os.path.split(self.target)
        self._made: list[str] = []
        self._rights: Rights | None = None  # of the directory that it is to replace
        self._unsynced: dict[str, None] = {}

    def begin(self, check: StopCheck = never_stop) -> None:
        """Make it, and lock it; `check` ends the wait if somebody else has."""
        make_ancestors(self._parent, self._made)
        self.doing = "removing what a killed save left"
        collect_stages(self.target, dry_run=False)
        self.doing = "creating a directory beside it"
        while not self._create(check):
            self.close()
        # No `__del__`, which would run for every stage, and where a Ctrl-C is lost.
        self._forgotten = finalize(self, unlock, self._lock)
        self._forgotten.atexit = False  # of a forked child, it would unlock the parent's
        self._unsynced[self.path] = None
        self.doing = "writing"

    def _create(self, check: StopCheck) -> bool:
        """Make and lock it; return False where another save took it for a killed one's before."""
        calls = syscalls.current()
        random = secrets.token_hex(_RANDOM_BYTES)
        self.path = f"{self._parent}/{temporary_prefix(self._name)}{random}.stage"
        self._rights = rights_of(self.target)
        calls.mkdir(self.path, 0o777 if self._rights is None else self._rights.mode & 0o777 | 0o700)
        try:
            # A link in its place is not followed: what it leads to would get the target's rights.
            open_into(self._lock, self.path, _FOLDER | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        self._wait_and_lock(self._lock[0], self.path, fcntl.LOCK_EX, check)
        make_private(self._lock[0], self._rights)
        return os.path.isdir(self.path)  # nobody else makes one of that name

    def _wait_and_lock(self, fd: int, path: str, operation: int, check: StopCheck) -> None:
        wait_and_lock(fd, path, operation, check=check, timeout_seconds=self._timeout_seconds)

    def path_beside(self, name: str) -> str:
        """Where a stage of that name lies, which another process has begun."""
        return f"{self._parent}/{name}"

    def join(self, name: str) -> None:
        """Fill the one of that name. Whoever began it puts it in place, or abandons it."""
        self.path = self.path_beside(name)
        self.doing = "writing"

    def make_directories(self, paths: Iterable[str]) -> None:
        """Make directories in it, and those that they lie in; none of them is flushed yet."""
        for path in paths:
            steps = path.split("/")
            for i in range(1, len(steps) + 1):
                self.make_directory("/".join(steps[:i]))

    def make_directory(self, path: str) -> bool:
        """Make one directory in it; False where it is there already."""
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
        """Note that a name has come or gone: the directory that it lies in is to be flushed."""
        self._unsynced[os.path.dirname(f"{self.path}/{path}")] = None

    def write(self, path: str, chunks: Iterable[bytes], *, mode: int = 0o666) -> None:
        """Put a new file in it, flushed to the disk."""
        calls = syscalls.current()
        opened: list[int] = []
        offset = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            open_into(opened, f"{self.path}/{path}", flags, mode=mode)
            for chunk in chunks:
                write_all(opened[0], memoryview(chunk), offset)
                offset += len(chunk)
            calls.fsync(opened[0])
        finally:
            if opened:
                calls.close(opened[0])
        self.mark_unsynced(path)

    def remove(self, name: str) -> None:
        """Remove a file that lies directly in it; for the process that began it."""
        syscalls.current().unlink(name, self._lock[0])
        self.mark_unsynced(name)

    def move(self, source: str, target: str) -> None:
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
        """Flush every directory that has changed since the last time."""
        while self._unsynced:
            sync_directory(next(reversed(self._unsynced)))
            self._unsynced.popitem()

    def commit(
        self, prepare: Callable[[str | None], Callable[[str], None]], check: StopCheck = never_stop
    ) -> None:
        """Put it in place of the target.

        Args:
            prepare: called under the lock of the parent with the path of the directory that
                is there now (None: there is none), to bring in what is to be kept of it. What
                it returns is called with the path of the old directory once that is out of
                place, to bring in what came there meanwhile.
            check: called while others hold the lock; what it raises ends the wait.

        Where `prepare` raises, nothing is replaced.
        """
        self.doing = "flushing its directories to the disk"
        self.sync_directories()
        self.doing = "waiting for the lock of its parent directory"
        held: list[int] = []  # the old one: nobody removes it before the exchange is on the disk
        path = f"{self._parent}/{temporary_prefix(self._name)}lock"
        try:
            with locked(path, check, timeout_seconds=self._timeout_seconds):
                out = self._replace(prepare, held, check)
        finally:
            unlock(held)
        self.close()
        if out is not None:
            _remove_unused(out, replaced=True)

    def _replace(
        self,
        prepare: Callable[[str | None], Callable[[str], None]],
        held: list[int],
        check: StopCheck,
    ) -> str | None:
        """Do what `commit` does under the lock; return where the old directory is now, locked."""
        old = f"{self._parent}/{_old_name(self._name)}"
        self.doing = "bringing in what it does not replace"
        _recover(self.target, old)
        target_exists = os.path.isdir(self.target)
        if target_exists:
            open_into(held, self.target, _FOLDER)
            self._wait_and_lock(held[0], self.target, fcntl.LOCK_SH, check)
        link_late_arrivals = prepare(self.target if target_exists else None)
        self.doing = "flushing its directories to the disk"
        self.sync_directories()
        self.doing = "putting it in place"
        limit_folder(self._lock[0], rights_of(self.target) or self._rights)  # may forbid writing
        out = self._put(old, target_exists=target_exists)
        self.path = self.target
        self.doing = "flushing its parent directory to the disk"
        sync_directory(self._parent)
        if out is not None:
            self.doing = "bringing in what came to the old directory meanwhile"
            link_late_arrivals(out)
            self.sync_directories()
        return out

    def _put(self, old: str, *, target_exists: bool) -> str | None:
        """Exchange it with the target, if there is one; return where the old one is now."""
        calls = syscalls.current()
        if not target_exists:
            calls.replace(self.path, self.target)
            self.in_place = True
            return None
        try:
            calls.exchange(self.path, self.target)
        except OSError as e:
            if e.errno not in _NO_EXCHANGE:
                raise
        else:
            self.in_place = True
            return self.path
        calls.replace(self.target, old)
        try:
            calls.replace(self.path, self.target)
        except BaseException:
            with suppress(
                OSError
            ):  # `locate_directory` finds it there, and the next save puts it back
                calls.replace(old, self.target)
            raise
        self.in_place = True
        return old

    def close(self) -> None:
        """Give up its lock."""
        unlock(self._lock)
        if self._forgotten is not None:
            self._forgotten.detach()

    def abandon(self) -> None:
        """Remove it, and the directories that were made for it, unless it is in place."""
        try:
            if not self.in_place:
                if self.path:
                    remove_tree(self.path)
                for folder in reversed(self._made):
                    with suppress(OSError):  # not empty: someone else uses it
                        syscalls.current().rmdir(folder)
        finally:
            self.close()

    @contextmanager
    def abandon_on_error(self) -> Iterator[None]:
        """On an exception abandon it; OSErrors are raised anew, saying what was going on."""
        try:
            with self.explain_errors():
                yield
        except BaseException:
            self.abandon()
            raise

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise OSErrors anew, saying what was going on."""
        try:
            yield
        except OSError as e:
            if isinstance(e, StorageError | NotACheckpointError) or e.errno is None:
                raise
            raise storage_error(
                e, self.asked, self.doing, what="directory", in_place=self.in_place
            ) from e


def locate_directory(path: str | os.PathLike[str]) -> str:
    """Return where the directory of a path is: a save without exchange may have moved it."""
    text = os.fspath(path)
    if not os.path.lexists(text):
        parent, name = os.path.split(os.path.realpath(text))
        old = f"{parent}/{_old_name(name)}"
        if os.path.isdir(old):
            return old
    return text


def stale_stages(path: str | os.PathLike[str]) -> list[str]:
    """Return the stages beside `path` that saves of it made, alive or killed."""
    parent, name = os.path.split(os.path.realpath(path))
    pattern = _pattern(name)
    with suppress(FileNotFoundError):
        return [f"{parent}/{entry}" for entry in sorted(os.listdir(parent)) if pattern(entry)]
    return []


def collect_stages(path: str | os.PathLike[str], *, dry_run: bool) -> list[str]:
    """Remove stages beside a path that nobody uses, but another user's; return their paths."""
    return [stage for stage in stale_stages(path) if _remove_unused(stage, dry_run=dry_run)]


def _resolve(path: str) -> str:
    """Return the absolute path behind any symlinks; refuse what cannot be exchanged."""
    target = os.path.realpath(path)
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return target
    if not stat.S_ISDIR(found.st_mode):
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


def _old_name(name: str) -> str:
    return f"{temporary_prefix(name)}old"


def _pattern(name: str) -> Callable[[str], object]:
    stem = re.escape(temporary_prefix(name))
    return re.compile(f"{stem}[0-9a-f]{{{2 * _RANDOM_BYTES}}}\\.stage").fullmatch


def _remove_unused(path: str, *, replaced: bool = False, dry_run: bool = False) -> bool:
    """Remove a directory unless a living save or a reader has locked it; return whether it went.

    `replaced`: this save has replaced it. Then it goes even if it is another user's, or the file
    system has no locks.
    """
    opened: list[int] = []
    try:
        if not replaced and not may_remove(path):
            return False
        open_into(opened, path, _FOLDER | os.O_NOFOLLOW)
        take = lock if replaced else syscalls.current().flock
        take(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been exchanged since: then another directory lies there.
        if not is_open_file_at(opened[0], path):
            return False
        if dry_run:
            return True
        remove_tree(path)
        return not os.path.lexists(path)  # another user's may stay
    except OSError:
        return False  # gone meanwhile, another user's, or in use: the next save looks again
    finally:
        close_all(opened)


def _recover(target: str, old: str) -> None:
    """Put back a directory that a save without exchange had renamed away, and remove garbage."""
    if not os.path.isdir(old):
        return
    if os.path.lexists(target):
        remove_tree(old)
    else:
        syscalls.current().replace(old, target)
