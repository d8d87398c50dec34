"""The trial of `migrations=`, where a checkpoint does not fit `like`: one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.errors import MismatchError
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import LoadOptions, Migration
from cordwood.loading.matching.match_result import Matching
from cordwood.loading.select_and_match import select_and_match
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.threads.log import log

_MAX_LINES = 12  # of what each attempt failed with


def match_or_migrate(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching, LoadOptions]:
    """Return the leaves to load, what to make of them, and the options by which they fit `like`.

    Migrations are tried in order, if the checkpoint does not fit without them. No array is read.
    """
    problems = []
    for number, attempt in enumerate(options.attempts(), start=-1):
        try:
            result = select_and_match(reader, like, attempt)
        except MismatchError as e:
            problems.append(e)
            continue
        if number >= 0:
            log.info(
                "%s does not fit as it is, and is loaded by migrations[%d] = %.200r",
                reader.path,
                number,
                options.migrations[number],
            )
        return *result, attempt
    if options.migrations:
        raise _migration_error(reader.path, options.migrations, problems)
    raise problems[0]


def _migration_error(
    name: str, migrations: Sequence[Migration], problems: Sequence[MismatchError]
) -> MismatchError:
    """Return the error of a checkpoint that fits neither as it is nor by any migration.

    Args:
        name: the checkpoint's name.
        migrations: the options that were tried.
        problems: the error of the checkpoint as it is, and of each migration.
    """
    titles = ["as it is"]
    titles += [f"migrations[{i}] = {each!r:.200}" for i, each in enumerate(migrations)]
    parts = []
    for title, problem in zip(titles, problems, strict=True):
        lines = str(problem).splitlines()
        stop = len(lines)  # of the indented lines; the advice after them is never cut
        while stop > _MAX_LINES and not lines[stop - 1].startswith(" "):
            stop -= 1
        more = [f"... and {stop - _MAX_LINES} more lines"] if stop > _MAX_LINES else []
        text = "\n".join([f"  {line}" for line in [*lines[:_MAX_LINES], *more, *lines[stop:]]])
        parts.append(f"{title}:\n{text}")
    return MismatchError(
        f"{name} does not fit `like`, neither as it is nor by any of migrations=:\n"
        + "\n".join(parts)
    )
