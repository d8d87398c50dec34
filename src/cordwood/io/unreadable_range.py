"""A byte range of a file that the disk cannot read."""

from __future__ import annotations

from cordwood.io.open_files import is_disk_error


class UnreadableRange(tuple[int, int]):
    """A byte range (start, stop) that the disk cannot read; `why` is its error."""

    why: OSError


def unreadable_range(start: int, stop: int, why: OSError) -> UnreadableRange:
    """Return the range, or raise the error if it is not an error of the disk."""
    if not is_disk_error(why):
        raise why
    unreadable = UnreadableRange((start, stop))
    unreadable.why = why
    return unreadable
