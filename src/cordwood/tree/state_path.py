"""Where in the state dict a restore is now, for each thread."""

from __future__ import annotations

import threading

__all__ = ["current_path", "path_stack"]


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
