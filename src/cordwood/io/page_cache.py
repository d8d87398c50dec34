"""The choice between the page cache and direct I/O for the files of a save.

A file that is written past the page cache (O_DIRECT) is written to the disk once, and without the
copy into the cache, which takes processor time from a training loop. But whoever reads it next on
this host reads it from the disk. So a save that its caller waits for leaves small checkpoints in
the page cache, and a save in the background does not, unless it is asked to. The files are flushed
before they count in either case. docs/design/0007-memory-of-loads.md has the measurements.
"""

from __future__ import annotations

from cordwood.io.memory.machine_memory import available_memory_bytes

_SHARE_OF_AVAILABLE = 8  # a save takes at most this part of the available memory for the cache


def fits_page_cache(size_bytes: int) -> bool:
    """Return True if a save of that size (bytes) is small beside the available memory."""
    return size_bytes * _SHARE_OF_AVAILABLE <= available_memory_bytes()


def require_page_cache_option(page_cache: object) -> None:
    """Raise TypeError unless the option is True or False."""
    if not isinstance(page_cache, bool):
        raise TypeError(f"page_cache={page_cache!r:.80}: expected True or False")
