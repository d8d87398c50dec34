"""The options of commands for bulk work: `--workers`, `--part` and `--journal`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from cordwood.cli.arguments import LOCAL_PATH

F = TypeVar("F", bound=Callable[..., Any])


def _parse_part(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """Return the part that a text such as 3/16 stands for."""
    if text is None:
        return None
    number, _, total = text.partition("/")
    if number.isdecimal() and total.isdecimal() and int(number) < int(total):
        return int(number), int(total)
    raise click.BadParameter(
        f"expected I/N, such as 0/16 to 15/16 (parts are counted from 0), found {text!r}"
    )


def bulk_work_options(command: F) -> F:
    """Add the options to a command, which receives `workers`, `part` and `journal`."""
    for option in (
        click.option(
            "--journal",
            type=LOCAL_PATH,
            metavar="DIRECTORY",
            help="List the tasks that are done in DIRECTORY, and skip those that it lists.",
        ),
        click.option(
            "--part",
            callback=_parse_part,
            metavar="I/N",
            help="Do part I of N, counted from 0, as one job of an array.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            metavar="N",
            help="Use N processes of this machine.",
        ),
    ):
        command = option(command)
    return command


AFTER_PARTS = (
    "; after all parts, the same command without --part writes what is missing, and the indexes"
)


@contextmanager
def worker_executor(workers: int | None) -> Iterator[Any]:
    """Run worker processes in the block; give their executor, or None for no workers."""
    if workers is None:
        yield None
        return
    from cordwood.bulk.worker_processes import WorkerProcesses

    with WorkerProcesses(workers) as executor:
        yield executor
