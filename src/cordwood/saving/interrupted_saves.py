"""The order of two saves to one path, of which the later one is called by a signal handler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cordwood.threads.latch import Latch
from cordwood.threads.started_thread import is_started_thread
from cordwood.threads.stop_check import POLL_SECONDS, check_stop


class _Turn:
    """A call that saves to a path, in the worker of the main thread."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.ended = Latch()


_turns_around: ContextVar[tuple[_Turn, ...]] = ContextVar("turns", default=())
_turns: dict[_Turn, None] = {}  # in the order of the calls; changed by single operations of dict


@contextmanager
def after_interrupted_saves(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for a save to the same path that the main thread was in when a handler interrupted it.

    So of two saves of one path the later one stays: that of the handler. The block is a save.
    """
    if not is_started_thread():  # a thread of the caller: no handler has interrupted it
        yield
        return
    turn = _Turn(os.path.realpath(path))
    around = _turns_around.get()  # a function that the caller has passed to such a call may save
    earlier = [each for each in list(_turns) if each.target == turn.target and each not in around]
    _turns[turn] = None
    token = _turns_around.set((*around, turn))
    try:
        for each in earlier:
            while not each.ended.wait(POLL_SECONDS):
                check_stop()
        yield
    finally:
        _turns_around.reset(token)
        _turns.pop(turn, None)
        turn.ended.set()


os.register_at_fork(after_in_child=_turns.clear)
