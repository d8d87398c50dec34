"""Keys of objects that no path can name: with an empty part, `.`, `..`, or a control character.

Another program may have put such an object below the URL of a run. The client of object stores
refuses the whole page of a listing that has one, so the listing goes around it.
"""

from __future__ import annotations

import errno
import re

from cordwood.errors import StorageError

_MARK = "Encountered object with invalid path"
_PATH = re.compile(r'Path "(.*?)"(?: contained|: Encountered)', re.DOTALL)
_CONTROL = re.compile(r"[\0-\x1f\x7f]")


def odd_key_of(error: BaseException) -> str | None:
    """Return the key for which the client has refused a page of a listing; None: another error."""
    text = str(error)
    if _MARK not in text:
        return None
    match = _PATH.search(text)
    return match[1] if match is not None else ""


def is_odd(name: str) -> bool:
    r"""Return True for a key, or the end of one, that no path can name.

    >>> [is_odd(name) for name in ("1/cordwood.json", "a//b", "../a", "a\n", "a/")]
    [False, True, True, True, False]
    """
    parts = name.removesuffix("/").split("/")
    return any(part in ("", ".", "..") for part in parts) or _CONTROL.search(name) is not None


def key_behind(key: str, prefix: str) -> str | None:
    """Return a key behind all those below a prefix that have the same odd first part.

    Args:
        key: the odd key.
        prefix: the prefix of the listing, with a slash at its end.

    Returns None for other odd keys: names of steps may come before them.

    >>> [key_behind(key, "run/") for key in ("run//log", "run/../x", "run/a//b")]
    ['run/0', 'run/..0', None]
    """
    for part in ("", ".", ".."):
        if key.startswith(f"{prefix}{part}/"):
            return f"{prefix}{part}0"  # the character behind the slash
    return None


def odd_key_error(key: str, url: str) -> StorageError:
    """Return the error for an odd key that no listing can pass over."""
    return StorageError(
        errno.EINVAL,
        f"there is an object with the key {key!r}, which the listing cannot pass over: remove or "
        "rename that object with a tool of the store (aws s3 rm, gcloud storage rm), and try again",
        url,
    )
