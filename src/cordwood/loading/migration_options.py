"""The value of `migrations=`: a list of options of a load, and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from cordwood.did_you_mean import nearest_name
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.transpose_leaves import Transpose
from cordwood.recipes.recipe import Recipe


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
