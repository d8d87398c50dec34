"""The choice of one item of a directory by its prefix."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TypeVar

from cordwood.errors import FormatError, PrefixError, absent_prefix_message, no_prefix_message

_T = TypeVar("_T")


def select_item(items: Mapping[str, _T], prefix: str | None, *, name: str) -> _T:
    """Return the item of a prefix; for None the one saved without a prefix, or the only one.

    Args:
        items: by their prefixes, whatever is known of each.
        prefix: the item's; None where none is asked for.
        name: the directory, for errors.

    Raises:
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError: there are no items at all.
    """
    available = sorted(items)
    if not available:
        raise FormatError(f"{name} holds no items")
    if prefix is None and ("" in items or len(items) == 1):
        return items["" if "" in items else available[0]]
    if prefix is None:
        raise PrefixError(f"{name}: {no_prefix_message(available)}")
    if available == [""] and prefix:
        raise PrefixError(
            f"{name}: Prefix {prefix!r} not found. It is one tree without a prefix: leave out "
            f"prefix=. To load a part of it, pass its key path as select= (`cordwood ls "
            f"{shlex.quote(name)}` lists them)"
        )
    if prefix not in items:
        hint = ". '' is the tree that has no prefix: leave out prefix=" if "" in items else ""
        raise PrefixError(f"{name}: {absent_prefix_message(prefix, available)}{hint}")
    return items[prefix]
