"""The option `migrations`: other options of a load, where a checkpoint does not fit `like`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from cordwood.errors import MismatchError
from cordwood.message_text import nearest_name
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.select_leaves import Transpose
from cordwood.recipes.recipe import Recipe

_MAX_LINES = 12  # of what each attempt failed with


class Migration(TypedDict, total=False):
    """Options of a load by which an older checkpoint fits `like`."""

    select: Select | None
    rename: Rename | None
    transpose: Transpose | None
    recipe: Recipe | None
    cast: Any
    missing: Literal["error", "keep"]
    extra: Literal["error", "ignore"]
    strict: bool


def require_migrations(migrations: Sequence[Migration], *, has_like: bool) -> None:
    """Raise TypeError or ValueError unless the value is a list of dicts of such options."""
    if isinstance(migrations, Mapping | str) or not isinstance(migrations, Sequence):
        raise TypeError(
            f"migrations: expected a list of dicts of options, found {migrations!r:.80}"
        )
    if migrations and not has_like:
        raise ValueError("migrations are tried where a checkpoint does not fit `like`: pass one")
    for number, migration in enumerate(migrations):
        if not isinstance(migration, Mapping):
            raise TypeError(
                f"migrations[{number}]: expected a dict of options, found {migration!r:.80}"
            )
        for name in migration:
            if name not in Migration.__annotations__:
                close = nearest_name(str(name), list(Migration.__annotations__))
                hint = f"; did you mean {close!r}?" if close is not None else ""
                raise TypeError(
                    f"migrations[{number}]: expected some of "
                    f"{', '.join(Migration.__annotations__)}, found {name!r}{hint}"
                )


def migration_error(
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
