"""Hard links from an old directory into its replacement, for files that a save does not change."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from cordwood.errors import NotACheckpointError
from cordwood.storage import syscalls
from cordwood.storage.directories import list_entries, open_directory_fd
from cordwood.storage.permissions import limit_folder, rights_of
from cordwood.storage.staging_directory import StagingDirectory

_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_COPY_BYTES = 4 << 20


def link_unchanged(
    source: str,
    stage: StagingDirectory,
    exclude: Callable[[str, set[str]], set[str]],
    *,
    missing_only: bool = False,
) -> None:
    """Link all files of a directory into the staging directory; copy them if links do not work.

    Args:
        source: the old directory.
        stage: the new one.
        exclude: returns the names that are not linked, given the path of a directory ('' for
            `source` itself) and the names in it.
        missing_only: skip files that the new directory has: it is in place already.

    Raises NotACheckpointError if the new directory has another file of the same name.
    """
    stack = [""]
    while stack:
        path = stack.pop()
        entries = list_entries(f"{source}/{path}" if path else source)
        names = set(entries)
        kept = names - exclude(path, names)
        if path and not names:
            _make_folder(source, stage, path)
        for name in sorted(kept):
            inner = f"{path}/{name}" if path else name
            if entries[name]:
                stack.append(inner)
                continue
            if path:
                _make_folder(source, stage, path)
            _link(f"{source}/{inner}", stage, inner, missing_only=missing_only)


def _make_folder(source: str, stage: StagingDirectory, path: str) -> None:
    """Make a directory and its parents, with the permissions of the old ones."""
    steps = path.split("/")
    for i in range(1, len(steps) + 1):
        inner = "/".join(steps[:i])
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
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        stage.write(path, iter(lambda: os.read(fd, _COPY_BYTES), b""), mode=mode)
    finally:
        os.close(fd)
