"""The files that belong to a directory of packs, also to an unfinished save."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.packs.packs_storage import RULES, store_at
from cordwood.storage.entry_content import split_content
from cordwood.storage.locations import Location


def foreign_files(location: Location, names: Sequence[str]) -> Collection[str]:
    """Return the files in a directory that are no part of its checkpoint."""
    has_index = RULES.index_name in names
    optional: frozenset[str] = frozenset()
    with suppress(CordwoodError, OSError):
        index = store_at(location).read_index() if has_index else None
        optional = frozenset() if index is None else RULES.optional_sidecars(index)
    files = [name for name in names if "/" not in name]
    others = [name for name in names if "/" in name]
    return split_content(
        files, others, RULES, has_own_sidecars=has_index, optional=optional
    ).foreign
