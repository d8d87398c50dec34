"""Locations: where a checkpoint lies, as a value that is parsed once from what a caller passes.

A public call makes one of its path in its first line. From there on the value is passed, a child is
made by `child`, and `isinstance` tells a path from a URL: nothing is parsed from text again.
docs/design/0016-locations.md has the reasons.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeGuard

from cordwood.errors import UnsupportedFormatError
from cordwood.storage.hub.hub_listing import HubListing
from cordwood.storage.peers.peer_step import PeerStep

SCHEMES = ("az", "file", "gs", "hf", "http", "https", "memory", "s3")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/(?!/)")  # a URL that was a pathlib object


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A path of this machine, as the caller wrote it; a relative one stays relative.

    It is an `os.PathLike`, which `os` and `open` take as it is.

    Attributes:
        text: the path.
        held: of a step whose files lie in several places: which. All reading calls then read it
            there; what is at the path itself is not looked at. Equality disregards it.
    """

    text: str
    held: HeldStep | None = field(default=None, compare=False, repr=False)

    @property
    def parent(self) -> LocalPath:
        """The directory that it lies in, by its text: a `..` is not resolved."""
        folder = self.text.rstrip("/").rpartition("/")[0]
        return LocalPath(folder or ("/" if self.text.startswith("/") else "."))

    @property
    def name(self) -> str:
        """The last component; "" for the root."""
        return self.text.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> LocalPath:
        """Return the path of an entry of the directory."""
        return LocalPath(f"{self.text.rstrip('/')}/{name}")

    def __fspath__(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Url:
    """The URL `scheme://bucket/key` of a place in an object store, on a web server or on the hub.

    It is no `os.PathLike`: a call of `os` for it is an error of types.

    Attributes:
        scheme: one of SCHEMES, but not "file".
        bucket: the bucket, container, host or organization; "" for memory://.
        key: no slash at either end; may be "".
        text: as the caller wrote it, for messages; "" for `address`. Equality disregards it.
        listing: of a model on the hub that was listed: all that a call reads is of that commit.
            Equality disregards it.
    """

    scheme: str
    bucket: str
    key: str
    text: str = field(default="", compare=False)
    listing: HubListing | None = field(default=None, compare=False, repr=False)

    @property
    def is_web(self) -> bool:
        """True for a web server, which can only be read, and lists nothing."""
        return self.scheme in ("http", "https")

    @property
    def is_hub(self) -> bool:
        """True for a model on the Hugging Face hub, which can only be read."""
        return self.scheme == "hf"

    @property
    def address(self) -> str:
        """The URL in the one spelling that its parts have."""
        return f"{self.scheme}://{'/'.join(filter(None, (self.bucket, self.key)))}"

    @property
    def plain(self) -> Url:
        """The same URL in the spelling of `address`."""
        return replace(self, text="")

    @property
    def parent(self) -> Url:
        """The URL above it; the bucket is above itself."""
        text = self.text.rstrip("/").removesuffix(f"/{self.name}")
        if "://" not in text:  # memory://, which has no bucket
            text = ""
        return replace(self, key=self.key.rpartition("/")[0], text=text)

    @property
    def name(self) -> str:
        """The last name of the key; "" for a bucket."""
        return self.key.rpartition("/")[2]

    def child(self, name: str) -> Url:
        """Return the URL of what lies below; a name may begin with "../"."""
        if name.startswith("../"):
            return self.parent.child(name[3:])
        key = "/".join(filter(None, (self.key, name)))
        text = f"{self.text.rstrip('/')}/{name}" if self.text else ""
        return replace(self, key=key, text=text)

    def __str__(self) -> str:
        return self.text or self.address


Location: TypeAlias = LocalPath | Url
Holder: TypeAlias = LocalPath | Url | PeerStep  # a place of files of a step


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step whose files are held in several places: the root of this process, peers, a mirror.

    Attributes:
        index: the bytes of its index, which the caller has checked.
        places: of each file that the index names, the places of the step that hold it, the nearest
            first.
        on_problem: called once for each place that fails, from any thread, with its name and the
            error. None: the log has a line.
        failed: the places that have failed in this process; others are asked before them.
        unread: the reason why no place has given the index, which is empty then; "" if one has.
    """

    index: bytes
    places: Mapping[str, Sequence[Holder]]
    on_problem: Callable[[str, Exception], None] | None = None
    failed: set[Holder] = field(default_factory=set)
    unread: str = ""


def parse_location(path: str | os.PathLike[str]) -> Location:
    """Return the location that a caller means: the first line of a public call.

    A leading `~` or `~user` becomes that home directory, as in shells; a name that begins with `~`
    and is no user's stays, and `./~` is a directory of that name. A file:// URL is a local path. A
    path object of another library that shows a URL is that URL.

    Raises:
        TypeError: it is no path, or bytes.
        ValueError: it is empty; or there is no home directory to put in place of a `~`.
        UnsupportedFormatError: the scheme is unknown, the bucket is missing, the key cannot be
            one, or the path has lost a slash of the URL that it was made of.

    >>> parse_location("file:///tmp/ckpt")
    LocalPath(text='/tmp/ckpt')
    >>> parse_location("s3://bucket/run/").child("100").key
    'run/100'
    """
    text = _with_home(path_text(path))
    if not text:
        raise ValueError("expected a path or a URL, found ''; '.' is the current directory")
    if _COLLAPSED.match(text):
        raise UnsupportedFormatError(
            f"{text}: a URL that was made a path has lost a slash: pass a str such as "
            f"{text.replace(':/', '://', 1)!r}, or an absolute path to mean a local directory"
        )
    match = _URL.match(text)
    if match is None:
        return LocalPath(text)
    scheme, after_scheme = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        raise UnsupportedFormatError(
            f"{text}: the scheme {scheme!r} is unknown; expected a path, or a URL of one of "
            f"{', '.join(f'{each}://' for each in SCHEMES)}"
        )
    return (
        _path_of_file_url(text, after_scheme)
        if scheme == "file"
        else _parse_url(text, scheme, after_scheme)
    )


def parse_local_path(path: str | os.PathLike[str], *, purpose: str) -> LocalPath:
    """Return the local path that a caller means, as `parse_location`.

    Raises UnsupportedFormatError for the URL of a store, with what the path is for; and as
    `parse_location`.
    """
    location = parse_location(path)
    if isinstance(location, Url):
        raise UnsupportedFormatError(f"{location}: expected a local path {purpose}, found a URL")
    return location


def require_local(location: Location) -> LocalPath:
    """Return a location that must be on a disk, as those of formats that are not read in stores.

    Raises UnsupportedFormatError for a URL.
    """
    if isinstance(location, Url):
        raise UnsupportedFormatError(f"{location}: expected a local path, found a URL")
    return location


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


def _path_of_file_url(text: str, after_scheme: str) -> LocalPath:
    from urllib.parse import unquote

    path = unquote(after_scheme.removeprefix("localhost"))
    if not path.startswith("/") or "\0" in path:
        raise UnsupportedFormatError(
            f"{text}: expected an absolute path after file://, as in file:///tmp/ckpt"
        )
    return LocalPath(path.rstrip("/") or "/")


def _parse_url(text: str, scheme: str, after_scheme: str) -> Url:
    if scheme == "memory":
        bucket, key = "", after_scheme.strip("/")
    else:
        bucket, _, key = after_scheme.rstrip("/").partition("/")
    if not (bucket or (key and scheme == "memory")):
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
    return Url(scheme, bucket, key, text)
