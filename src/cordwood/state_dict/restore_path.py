"""Where in a state dict something is: a restore of this thread, and names as a key path."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from cordwood.keypath import Key, KeyPath

_POSITION = re.compile(r"0|[1-9][0-9]{0,17}")


class _Stack(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_stack = _Stack()


def path_stack() -> list[str]:
    """This thread's own list of names, outermost first; whoever appends also removes."""
    return _stack.names


def current_path() -> str:
    """The '/'-joined names down to what is being restored: './params/0'; '' outside a restore."""
    return "/".join(_stack.names)


def state_key_path(names: Iterable[Key]) -> KeyPath:
    """A key path for messages: positions that a state dict has as strings are positions again."""
    return tuple(
        int(name) if isinstance(name, str) and _POSITION.fullmatch(name) else name for name in names
    )
