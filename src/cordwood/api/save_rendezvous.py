"""Who saves together: all processes a directory, each process its own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cordwood.formats.format_protocol import Format, is_directory_format
from cordwood.formats.registry import DEFAULT
from cordwood.processes import rendezvous as rendezvous_module
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
    """Make the rendezvous for a save, not entered yet; announce to it an error in the block.

    Args:
        how: what else must be the same on every process, in words.
        background: it is entered in the background.
    """
    # All that must be the same on every process, and that their trees do not show.
    purpose = f"save {os.fspath(path)}" + (f" ({prefix})" if prefix else "")
    if format is not DEFAULT and is_directory_format(format):
        purpose += f" as {format.name}" + (f" with {compression}" if compression else "")
    purpose += how
    rendezvous = Rendezvous(
        current_processes() if is_directory_format(format) else SINGLE_PROCESS,
        purpose,
        timeout_seconds=timeout_seconds,
        silence_seconds=rendezvous_module.SILENCE_SECONDS,
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
