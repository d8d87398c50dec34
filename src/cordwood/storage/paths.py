"""Paths and URLs: their distinction, what a path leads to, and the names that saves make.

Whatever a save creates for a time has a name that begins with a dot, and with the name of the file
or directory that it will become: so a later save finds what a killed one has left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeGuard

from cordwood.errors import StorageError, UnsupportedFormatError

SCHEMES = ("az", "file", "gs", "http", "https", "memory", "s3")

# The folder beside the steps of a run in an object store, with the data objects that they share.
# It comes before the names of steps in a listing, which can so begin after it.
POOL = ".data"

# What a web server's answer "not found" means for the index of a checkpoint.
NOTHING_ON_THE_WEB = "there is no checkpoint, and a web server lists no steps: name one of them"

_NAME_MAX = 255  # bytes in a file name on Linux file systems
_RANDOM_BYTES = 8
_TIME_DIGITS = 8  # of the id of a save

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/(?!/)")  # a URL that was a pathlib object


class Url(NamedTuple):
    """A URL `scheme://bucket/key`; for file:// and memory:// the bucket is empty."""

    scheme: str
    bucket: str
    key: str  # no slash at either end, but for file://, where it is the absolute path; may be ""

    @property
    def is_web(self) -> bool:
        """True for a web server, which can only be read, and lists nothing."""
        return self.scheme in ("http", "https")

    def child(self, name: str) -> Url:
        """Return the URL of what lies below; a name may begin with "../"."""
        key = self.key
        while name.startswith("../"):
            key, name = key.rpartition("/")[0], name[3:]
        return self._replace(key="/".join(filter(None, (key, name))))

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(filter(None, (self.bucket, self.key)))}"


def is_path(value: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return True for a str and for a path object of any library.

    The objects of some libraries (universal_pathlib, yarl, eFormer) are no `os.PathLike`; they have
    a `with_name`, as those of pathlib.
    """
    return isinstance(value, str | os.PathLike) or hasattr(type(value), "with_name")


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path, or a URL, as text: what a path object shows if that is a URL.

    Objects of etils, universal_pathlib and cloudpathlib show the URL that they stand for. That of
    cloudpathlib is not asked for its `os.fspath`, which downloads the object.

    Raises TypeError for what is no path, and for bytes.
    """
    if isinstance(path, str):
        return path
    if isinstance(path, bytes):
        raise TypeError(
            f"path: expected a str or a path object, found bytes, {path!r:.80}; os.fsdecode(path) "
            "makes a str of them"
        )
    if not is_path(path):
        raise TypeError(
            f"path: expected a path, a str or a pathlib.Path, found {type(path).__name__}; "
            "the path comes first"
        )
    shown = str(path)
    if _URL.match(shown) or not isinstance(path, os.PathLike):
        return shown
    text = os.fspath(path)
    return path_text(text)  # bytes are refused


def parse_url(path: str | os.PathLike[str]) -> Url | None:
    """Parse the text of a URL; return None for a path such as `a/b` or `gs:b`.

    Raises:
        TypeError: it is no path, or bytes.
        ValueError: it is empty.
        UnsupportedFormatError: the scheme is unknown, the bucket is missing, the key cannot be
            one, or the path has lost a slash of the URL that it was made of.
    """
    text = path_text(path)
    if not text:
        raise ValueError("expected a path or a URL, found ''; '.' is the current directory")
    if _COLLAPSED.match(text):
        raise UnsupportedFormatError(
            f"{text}: a URL that was made a path has lost a slash: pass a str such as "
            f"{text.replace(':/', '://', 1)!r}, or an absolute path to mean a local directory"
        )
    match = _URL.match(text)
    if match is None:
        return None
    scheme, rest = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        raise UnsupportedFormatError(
            f"{text}: the scheme {scheme!r} is unknown; expected a path, or a URL of one of "
            f"{', '.join(f'{each}://' for each in SCHEMES)}"
        )
    if scheme == "file":
        from urllib.parse import unquote

        rest = unquote(rest.removeprefix("localhost"))
        if not rest.startswith("/") or "\0" in rest:
            raise UnsupportedFormatError(
                f"{text}: expected an absolute path after file://, as in file:///tmp/ckpt"
            )
        return Url(scheme, "", rest.rstrip("/") or "/")
    rest = rest.strip("/") if scheme == "memory" else rest.rstrip("/")
    bucket, _, key = ("", "", rest) if scheme == "memory" else rest.partition("/")
    if not (key if scheme == "memory" else bucket):
        raise UnsupportedFormatError(
            f"{text}: expected a {'name' if scheme == 'memory' else 'bucket'} after the scheme, "
            f"as in {scheme}://{'' if scheme == 'memory' else 'bucket/'}run/step-100"
        )
    if "@" in bucket and scheme in ("http", "https"):
        raise UnsupportedFormatError(
            f"{scheme}://...@{bucket.rpartition('@')[2]}: a URL with a user or a password is not "
            "taken: it would stand in logs and errors"
        )
    parts = key.split("/") if key else []
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\0-\x1f\x7f]", key):
        raise UnsupportedFormatError(
            f"{text!r}: expected names between the slashes, none of them empty, '.' or '..', and "
            "no control characters"
        )
    return Url(scheme, bucket, key)


def local_or_url(path: str | os.PathLike[str]) -> str:
    """Return the path or the URL that a caller means, as text: the first line of a public call.

    A leading `~` or `~user` becomes that home directory, as in shells; a name that begins with `~`
    and is no user's stays, and `./~` is a directory of that name. Of a file:// URL this is the
    path, of a path object of another library the URL that it shows.

    Raises ValueError where there is no home directory to put in place of a `~`, and as `parse_url`.

    >>> local_or_url("file:///tmp/ckpt")
    '/tmp/ckpt'
    """
    text = _with_home(path_text(path))
    url = parse_url(text)
    return url.key if url is not None and url.scheme == "file" else text


def local_path(path: str | os.PathLike[str], *, purpose: str) -> str:
    """Return the local path that a caller means, as `local_or_url`.

    Raises UnsupportedFormatError for the URL of a store, with what the path is for; and as
    `local_or_url`.
    """
    text = local_or_url(path)
    if parse_url(text) is not None:
        raise UnsupportedFormatError(f"{text}: expected a local path {purpose}, found a URL")
    return text


def _with_home(text: str) -> str:
    if not text.startswith("~"):
        return text
    expanded = os.path.expanduser(text)
    if expanded == text and text.partition("/")[0] == "~":
        raise ValueError(
            f"{text}: this user has no home directory; give the whole path, or ./~ for a "
            "directory of that name"
        )
    return expanded


_WHY = {
    errno.ELOOP: "a symbolic link leads back to itself; expected a checkpoint",
    errno.ENAMETOOLONG: "longer than a name or a path can be; expected that of a checkpoint",
}


def kind_at(
    path: str | os.PathLike[str],
) -> Literal["nothing", "a file", "a folder", "something else"]:
    """Return what a path leads to. Symbolic links are followed.

    Raises StorageError for circular links and for names that are too long; PermissionError. Each
    names the path.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as e:
        if e.errno in _WHY:
            raise StorageError(e.errno, _WHY[e.errno], os.fspath(path)) from e
        raise
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "something else"


def blocking_parent(path: str | os.PathLike[str]) -> str | None:
    """Return the existing parent of a path that is not a directory; None if there is none."""
    for parent in Path(path).parents:
        with suppress(OSError):
            return None if stat.S_ISDIR(os.stat(parent).st_mode) else os.fspath(parent)
    return None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is known to lead to a directory; symbolic links are followed."""
    return os.path.isdir(path)


def is_same_path(path: str, other: str) -> bool:
    """Return True if two paths, or URLs, are the same; symbolic links are followed."""
    return os.path.realpath(path) == os.path.realpath(other)


def is_within(path: str, other: str) -> bool:
    """Return True if a path, or a URL, lies below another one; symbolic links are followed."""
    parent = os.path.realpath(other).rstrip("/")
    return os.path.realpath(path).startswith(f"{parent}/")


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path to which a path leads; symbolic links are followed."""
    return os.path.realpath(path)


def last_name(path: str | os.PathLike[str]) -> str:
    """Return the last component of a path, or of a URL; symbolic links are followed."""
    return os.path.basename(os.path.realpath(path))


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path; `..` is kept, because it depends on symbolic links."""
    return os.path.join(os.getcwd(), path) if not os.path.isabs(path) else os.fspath(path)


def is_empty_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a path leads to an empty file, without opening it; links are followed."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def is_link(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a symbolic link, also a broken one."""
    return os.path.islink(path)


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Return True if a path exists, also as a broken symbolic link.

    Raises PermissionError if the parent directory may not be searched.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:  # a parent is a circular link
            return False
        raise
    return True


def temporary_prefix(name: str) -> str:
    """Return the common prefix of the names of all temporary files of `name`."""
    stem = f".{name}.cordwood-"
    if len(os.fsencode(stem)) + 2 * _RANDOM_BYTES + len(".tmp") <= _NAME_MAX:
        return stem
    short = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return f".{short}.cordwood-"


LOCK_NAME = f"{temporary_prefix('steps')}lock"  # of a directory, for renames in it and pins


def temporary_pattern(name: str, kind: str = "tmp") -> re.Pattern[str]:
    """Return a pattern that matches the names of all temporary files of `name`."""
    stem = re.escape(temporary_prefix(name))
    return re.compile(rf"{stem}[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.{kind}")


def temporary_of(name: str) -> str | None:
    """Return the name of the file that a file of that name is a temporary file of, or None.

    A very long name is not recognized.
    """
    match = re.fullmatch(rf"\.(.+)\.cordwood-[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.tmp", name)
    return match[1] if match else None


def temporary_path(folder: str, name: str, kind: str = "tmp") -> str:
    """Return the path of a new temporary file of `name`, with a random part.

    Of a directory that is being written the kind is "stage"; of a step that was moved away to be
    removed, "deleted" or "damaged"; of what `cordwood rm` removes, "removed".
    """
    random = secrets.token_hex(_RANDOM_BYTES)
    return os.path.join(folder, f"{temporary_prefix(name)}{random}.{kind}")


def old_name(name: str) -> str:
    """Return the name of the directory `name` while a save without exchange replaces it."""
    return f"{temporary_prefix(name)}old"


def locate_directory(path: str | os.PathLike[str]) -> str:
    """Return the actual path of a directory: a save without exchange may have renamed it."""
    text = os.fspath(path)
    if not os.path.lexists(text):
        parent, name = os.path.split(os.path.realpath(text))
        old = f"{parent}/{old_name(name)}"
        if os.path.isdir(old):
            return old
    return text


def parent_and_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the directory that something lies in, or has lain in, and its name; links resolved."""
    return os.path.split(os.path.realpath(path))


def stale_stages(path: str | os.PathLike[str]) -> list[str]:
    """Return the staging directories beside `path`, of running or killed saves of `path`."""
    parent, name = os.path.split(os.path.realpath(path))
    is_stage = temporary_pattern(name, "stage").fullmatch
    with suppress(FileNotFoundError):
        return [f"{parent}/{entry}" for entry in sorted(os.listdir(parent)) if is_stage(entry)]
    return []


def new_save_id() -> str:
    """Return 16 hexadecimal digits: 8 of the seconds since 1970, and 8 random ones.

    The time is for people who look at the names. If the clock is before 1970 or after 2106, it is
    the first or the last second of that time.
    """
    seconds = min(max(int(time.time()), 0), 16**_TIME_DIGITS - 1)
    return f"{seconds:0{_TIME_DIGITS}x}{secrets.token_hex(4)}"


def pooled_name(save_id: str, name: str) -> str:
    """Return the name of a data object of the pool, as the index of a step refers to it.

    >>> pooled_name("65f0000000001234", "data-65f0000000001234-0-0.safetensors")
    '../.data/65f0000000001234/data-65f0000000001234-0-0.safetensors'
    """
    return f"../{POOL}/{save_id}/{name}"
