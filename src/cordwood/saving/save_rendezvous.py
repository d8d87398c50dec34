"""The rendezvous of the processes that save together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.table import DEFAULT, Format
from cordwood.processes.key_value_store import SINGLE_PROCESS, current_processes
from cordwood.processes.rendezvous import Rendezvous
from cordwood.saving.background_saves import raise_unreported_failures
from cordwood.storage.locations import Location


@contextmanager
def rendezvous_for(
    location: Location,
    format: Format,
    options: SaveOptions,
    timeout_seconds: float,
    *,
    how: str = "",
    background: bool = False,
) -> Iterator[Rendezvous]:
    """Make the rendezvous of a save, not entered yet; announce an error of the block to it.

    Args:
        location: the destination.
        format: the format to write.
        options: the options of the format.
        timeout_seconds: the time to wait for the other processes.
        how: further options that must be the same on every process, as text.
        background: the rendezvous is entered in the background.

    Raises PendingSaveError if an earlier save has failed, and this is the only process.
    """
    # Everything that must be the same on every process and that the trees do not show.
    purpose = f"save {location}" + (f" ({options.prefix})" if options.prefix else "")
    if format is not DEFAULT and format.is_directory:
        compression = f" with {options.compression}" if options.compression else ""
        purpose += f" as {format.name}{compression}"
    if options.max_shard_bytes is not None:
        purpose += f" in files of {options.max_shard_bytes} bytes"
    purpose += how
    rendezvous = Rendezvous(
        current_processes() if format.is_directory else SINGLE_PROCESS,
        purpose,
        timeout_seconds=timeout_seconds,
        background=background,
    )
    with announce_errors(rendezvous):
        if rendezvous.count == 1:  # of several processes, others may have reported it already
            raise_unreported_failures()
        yield rendezvous


@contextmanager
def announce_errors(rendezvous: Rendezvous) -> Iterator[None]:
    """Tell the other processes of an error that leaves the block."""
    try:
        yield
    except BaseException as e:
        rendezvous.leave(e)
        raise
