"""The options of a load, and the target of each leaf: kind, dtype and sharding of its value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Leaf, LeafKind
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import require_progress_option
from cordwood.keypath import format_path
from cordwood.loading.migrations import Migration, require_migrations
from cordwood.message_text import first_lines, text_literal
from cordwood.plan.path_patterns import Rename, Select
from cordwood.plan.select_leaves import Transpose
from cordwood.sharding.partition_rules import Rules

_new = tuple.__new__
_MOST_LEFT_OUT = 3  # leaves that a message proposes to leave out
_NEED_X64 = frozenset({"int64", "uint64", "float64", "complex128"})
# A dtype for all floating arrays, or a mapping of patterns to dtypes.
Cast: TypeAlias = str | type | Any | Mapping[str, Any]
Missing: TypeAlias = Literal["error", "keep"]
Extra: TypeAlias = Literal["error", "ignore"]


class TreeOptions(TypedDict, total=False):
    """Options of every call that loads a tree: placement, selection, differences to accept."""

    mesh: Any
    rules: Rules | None
    shardings: Any
    strict: bool
    cast: bool | Cast | None
    select: Select | None
    rename: Rename | None
    transpose: Transpose | None
    missing: Missing
    extra: Extra
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
        require_migrations(self.migrations, has_like=like is not None)
        for attempt in self.attempts()[1:]:
            attempt.require_valid(like)
        to, cast, missing, extra = self.to, self.cast, self.missing, self.extra
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


class Target(NamedTuple):
    """A stored leaf, and the kind, dtype and sharding of the value to load."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # if it differs from the leaf's, the elements are converted
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding or Format
    axes: tuple[int, ...] | None = None  # the order of the axes, as numpy.transpose takes it


def target_size_bytes(target: Target) -> int:
    """Return the size of the stored elements of a target's leaf, in bytes; 0 for a value."""
    leaf = target.leaf
    return math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0


def default_targets(leaves: Sequence[Leaf], to: str | None) -> list[Target]:
    """Return targets of the kinds that were saved; `to` ("jax" or "numpy") decides for arrays."""
    if not leaves:
        return []
    _, stored_as, _, dtype_names, _, weak_types, _ = zip(*leaves, strict=True)
    kind_of = {kind: _kind_as_saved(kind, to) for kind in set(stored_as)}
    kinds = [kind_of[kind] for kind in stored_as]
    if any(weak_types):
        weak_types = tuple([w and k == "jax" for w, k in zip(weak_types, kinds, strict=True)])
    columns = zip(leaves, kinds, dtype_names, weak_types, repeat(None), repeat(None))
    return list(map(_new, repeat(Target), columns))


def _kind_as_saved(kind: LeafKind, to: str | None) -> LeafKind:
    if to is not None and kind in ("jax", "numpy"):
        return "jax" if to == "jax" else "numpy"
    if to == "numpy" and kind == "prng_key":
        return "numpy"
    return kind


def check_x64(
    name: str, targets: Sequence[Target], *, has_like: bool = True, cast: Any = None
) -> None:
    """Raise MismatchError for 64-bit leaves that jax would truncate to 32 bits.

    Args:
        name: the checkpoint's name in errors.
        targets: the leaves and what to make of them.
        has_like: a `like` gives the dtypes of the leaves.
        cast: the caller's argument; the message proposes a mapping that extends it.
    """
    if "jax" not in map(itemgetter(1), targets):
        return
    wide = [t for t in targets if t.kind == "jax" and (t.dtype or t.leaf.dtype) in _NEED_X64]
    if not wide:
        return
    import jax

    if jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        return
    lines = [f"{format_path(t.leaf.key_path)}: {t.dtype or t.leaf.dtype}" for t in wide]
    is_stored = any(t.leaf.dtype in _NEED_X64 for t in wide)
    what = f"{name} has 64-bit leaves" if is_stored else f"cast= makes 64-bit leaves of {name}"
    advice = "a `like` of 32-bit arrays and cast=True"
    if not has_like:
        advice = _narrower(wide, cast)
        if len(wide) <= _MOST_LEFT_OUT and len(wide) < len(targets):
            others = ", ".join([text_literal(f"!{format_path(t.leaf.key_path)}") for t in wide])
            advice += f', or leave leaves out: select=["**", {others}]'
    raise MismatchError(
        f"{what} ({len(wide)} in all), and jax's 64-bit types are off: "
        'load with to="numpy", or call jax.config.update("jax_enable_x64", True) first, or pass '
        f"{advice}:\n{first_lines(lines, 20)}"
    )


def _narrower(wide: Sequence[Target], cast: Any) -> str:
    """Return the source text of a `cast` that makes those leaves 32-bit ones."""
    entries: dict[str, str] = {}
    has_floats = False
    for target in wide:
        dtype = target.dtype or target.leaf.dtype
        if dtype == "float64":
            has_floats = True
        else:
            narrow = "complex64" if dtype == "complex128" else dtype.replace("64", "32")
            entries[format_path(target.leaf.key_path)] = narrow
    shown = [f'{text_literal(name)}: "{dtype}"' for name, dtype in list(entries.items())[:3]]
    if len(entries) > len(shown):
        shown.append("...")
    if isinstance(cast, Mapping):
        shown += [f'{text_literal(name)}: "{dtypes.parse(dtype)}"' for name, dtype in cast.items()]
        if has_floats:
            shown.append('"**": "float32"')
    elif has_floats or not isinstance(cast, bool | None):
        rest = "float32" if has_floats else cast if isinstance(cast, str) else dtypes.parse(cast)
        if not shown:
            return f'cast="{rest}"'
        shown.append(f'"**": "{rest}"')
    return f"cast={{{', '.join(shown)}}}"
