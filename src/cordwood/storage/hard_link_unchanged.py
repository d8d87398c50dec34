"""Link into a new directory what the old one holds and the save does not replace."""

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
    """Bring all of a directory into the stage, its files by hard links; copied without those.

    Args:
        source: the old directory.
        stage: the new one.
        exclude: which of the names in a directory are not to come: given the directory's path
            ('' for the outermost) and its names.
        missing_only: the stage is in place already: only what it has not comes.

    Raises NotACheckpointError where a file of the old one would have to give way.
    """
    stack = [""]
    while stack:
        path = stack.pop()
        found = list_entries(f"{source}/{path}" if path else source)
        names = set(found)
        kept = names - exclude(path, names)
        if path and not names:
            _make_folder(source, stage, path)
        for name in sorted(kept):
            inner = f"{path}/{name}" if path else name
            if found[name]:
                stack.append(inner)
                continue
            if path:
                _make_folder(source, stage, path)
            _link(f"{source}/{inner}", stage, inner, missing_only=missing_only)


def _make_folder(source: str, stage: StagingDirectory, path: str) -> None:
    """Make a directory and those above it as they are in the old one."""
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
            return  # removed meanwhile
        raise
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        _copy(source, stage, path)
    stage.mark_unsynced(path)


def _copy(source: str, stage: StagingDirectory, path: str) -> None:
    """For file systems without hard links."""
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
