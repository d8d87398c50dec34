"""A progress bar, shown only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cordwood.io.progress import Progress


@contextmanager
def bar(verb: str, *, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that draws a bar on standard error: bytes, rate, and the file being read.

    Yield None if standard error is not a terminal, or if `quiet`.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    shown = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[doing]}", markup=True),
        console=Console(stderr=True),
        transient=True,
    )
    with shown:
        task = shown.add_task(verb, total=None, doing="")

        def report(progress: Progress) -> None:
            done, total, doing = progress
            shown.update(task, completed=done, total=total or None, doing=doing[-40:])

        yield report
