"""The rendezvous of a save: all processes save a directory together, one process saves a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cordwood.formats.format_protocol import Format, is_directory_format
from cordwood.formats.registry import DEFAULT
from cordwood.processes.coordination import SINGLE_PROCESS, current_processes
from cordwood.processes.rendezvous import Rendezvous


@contextmanager
def rendezvous_for(
    path: str | os.PathLike[str],
    format: Format,
    *,
    prefix: str | None,
    compression: str | None,
    timeout_seconds: float,
    how: str = "",
    background: bool = False,
) -> Iterator[Rendezvous]:
    """Make the rendezvous of a save, not entered yet; announce an error of the block to it.

    Args:
        path: the destination.
        format: the format to write.
        prefix: the name of the tree in a directory of several.
        compression: the compression of a zarr directory.
        timeout_seconds: the time to wait for the other processes.
        how: further options that must be the same on every process, as text.
        background: the rendezvous is entered in the background.
    """
    # Everything that must be the same on every process and that the trees do not show.
    purpose = f"save {os.fspath(path)}" + (f" ({prefix})" if prefix else "")
    if format is not DEFAULT and is_directory_format(format):
        purpose += f" as {format.name}" + (f" with {compression}" if compression else "")
    purpose += how
    rendezvous = Rendezvous(
        current_processes() if is_directory_format(format) else SINGLE_PROCESS,
        purpose,
        timeout_seconds=timeout_seconds,
        background=background,
    )
    with announce_errors(rendezvous):
        yield rendezvous


@contextmanager
def announce_errors(rendezvous: Rendezvous) -> Iterator[None]:
    """Tell the other processes of an error that leaves the block."""
    try:
        yield
    except BaseException as e:
        rendezvous.give_up(e)
        raise
