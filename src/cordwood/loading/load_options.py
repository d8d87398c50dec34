"""Checks of the arguments of `load`."""

from __future__ import annotations

from typing import Any

from cordwood.loading.assign_shardings import ShardingOptions


def validate_load_options(
    like: Any, *, to: Any, cast: Any, missing: Any, extra: Any, sharding_options: ShardingOptions
) -> None:
    """Raise ValueError for invalid arguments, and for arguments that would have no effect."""
    if to not in (None, "jax", "numpy"):
        raise ValueError(f'to={to!r}: expected "jax", "numpy" or None')
    if to == "numpy" and sharding_options != ShardingOptions():
        raise ValueError('to="numpy" has no use for a mesh, rules or shardings: leave one out')
    if missing not in ("error", "keep"):
        raise ValueError(f'missing={missing!r}: expected "error" or "keep"')
    if extra not in ("error", "ignore"):
        raise ValueError(f'extra={extra!r}: expected "error" or "ignore"')
    if like is not None:
        if not isinstance(cast, bool):
            raise ValueError(
                f"cast={cast!r}: with `like`, which has dtypes, cast=True converts to those"
            )
        return
    if cast is True:
        raise ValueError(
            'cast=True converts to the dtypes of `like`: pass one, or a dtype (cast="bf16")'
        )
    if (missing, extra) != ("error", "error"):
        name, value = ("missing", missing) if missing != "error" else ("extra", extra)
        raise ValueError(f"{name}={value!r} is about the leaves of `like`: pass one")
