"""The path of the value that a thread restores now, for the messages of handlers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from cordwood.keypath import Key, KeyPath

_POSITION = re.compile(r"0|[1-9][0-9]{0,17}")


_thread = threading.local()


def path_stack() -> list[str]:
    """Return this thread's list of names, outermost first; a caller that appends also removes."""
    names: list[str] = vars(_thread).setdefault("names", [])
    return names


def current_path() -> str:
    """Return the path that this thread is restoring, such as './params/0'; '' outside a restore."""
    return "/".join(path_stack())


def state_key_path(names: Iterable[Key]) -> KeyPath:
    """Return names as a key path for messages; a string that is a position becomes an int."""
    return tuple(
        int(name) if isinstance(name, str) and _POSITION.fullmatch(name) else name for name in names
    )
