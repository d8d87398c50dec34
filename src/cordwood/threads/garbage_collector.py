"""The pause of Python's cyclic garbage collector while an index is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector in the block, and restore its state after it.

    Reading an index of 20,000 leaves creates 100,000 tuples, none of them garbage. The collector
    would traverse them, and all other objects of the process, again and again: half of the time of
    a read.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
