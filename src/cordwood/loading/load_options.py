"""The options of a load, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from cordwood.did_you_mean import nearest_name
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import require_progress_option
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.transpose_leaves import Transpose
from cordwood.recipes.recipe import Recipe
from cordwood.sharding.partition_rules import Rules

# A dtype for all floating arrays, or a mapping of patterns to dtypes.
Cast: TypeAlias = str | type | Any | Mapping[str, Any]
Missing: TypeAlias = Literal["error", "keep"]
Extra: TypeAlias = Literal["error", "ignore"]


class Migration(TypedDict, total=False):
    """Options of a load by which an older checkpoint fits `like`."""

    select: Select | None
    rename: Rename | None
    transpose: Transpose | None
    recipe: Recipe | None
    cast: bool | Cast | None
    missing: Missing
    extra: Extra
    strict: bool


class TreeOptions(Migration, total=False):
    """Options of every call that loads a tree: placement, selection, differences to accept."""

    mesh: Any
    rules: Rules | None
    shardings: Any
    migrations: Sequence[Migration]
    progress: ProgressOption


class ReadOptions(TreeOptions, total=False):
    """Options of `Checkpoint.load`."""

    mmap: bool
    to: Literal["jax", "numpy"] | None
    verify: bool | None
    alias: bool
    nest: bool


class OpenAndReadOptions(ReadOptions, total=False):
    """Options of `cordwood.load`."""

    format: str | None
    prefix: str | None
    max_bytes: int | None


class LoadOptions(NamedTuple):
    """The options of one load, as `cordwood.load` documents them."""

    mmap: bool = False
    to: Literal["jax", "numpy"] | None = None
    verify: bool | None = None
    strict: bool = True
    cast: bool | Cast | None = False
    select: Select | None = None
    rename: Rename | None = None
    missing: Missing = "error"
    extra: Extra = "error"
    alias: bool = True
    nest: bool = False
    transpose: Transpose | None = None
    recipe: Recipe | None = None
    mesh: Any = None
    rules: Rules | None = None
    shardings: Any = None
    migrations: Sequence[Migration] = ()
    progress: ProgressOption = None

    def attempts(self) -> list[LoadOptions]:
        """Return the options to try, one after another: these, and those of each migration."""
        plain = self._replace(migrations=())
        return [plain, *(plain._replace(**migration) for migration in self.migrations)]

    @property
    def assigns_shardings(self) -> bool:
        """True if an option assigns leaves to devices."""
        return any(each is not None for each in (self.mesh, self.rules, self.shardings))

    @property
    def casts_to_like(self) -> bool:
        """True if leaves are converted to the dtypes of `like`."""
        return self.cast is True

    def require_valid(self, like: Any) -> None:
        """Raise ValueError for invalid options, and for options that would have no effect.

        Raises TypeError for a `progress` that is no function.
        """
        _require_migrations(self.migrations, has_like=like is not None)
        for attempt in self.attempts()[1:]:
            attempt.require_valid(like)
        to, cast, missing, extra = self.to, self.cast, self.missing, self.extra
        if self.recipe is not None:
            from cordwood.recipes.map_index import require_alone

            require_alone(self.recipe, rename=self.rename, transpose=self.transpose)
        if to not in (None, "jax", "numpy"):
            raise ValueError(f'to={to!r}: expected "jax", "numpy" or None')
        if to == "numpy" and self.assigns_shardings:
            raise ValueError('to="numpy" has no use for a mesh, rules or shardings: leave one out')
        if missing not in ("error", "keep"):
            raise ValueError(f'missing={missing!r}: expected "error" or "keep"')
        if extra not in ("error", "ignore"):
            raise ValueError(f'extra={extra!r}: expected "error" or "ignore"')
        if like is None and cast is True:
            raise ValueError(
                'cast=True converts to the dtypes of `like`: pass one, or a dtype (cast="bf16")'
            )
        if like is None and (missing, extra) != ("error", "error"):
            name, value = ("missing", missing) if missing != "error" else ("extra", extra)
            raise ValueError(f"{name}={value!r} is about the leaves of `like`: pass one")
        if self.progress is not None:
            require_progress_option(self.progress)


def _require_migrations(migrations: Sequence[Migration], *, has_like: bool) -> None:
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
