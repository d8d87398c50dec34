"""The load of a published version that is a delta: a tree before it, and the deltas since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from cordwood.deltas.held_version import HeldVersion
from cordwood.deltas.stored_versions import StoredVersions
from cordwood.deltas.version_chain import open_chain
from cordwood.errors import MismatchError, UnsupportedFormatError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_in_name
from cordwood.formats.table import DEFAULT
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_tree
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_step_storage import open_step_listing
from cordwood.storage.paths import real_path


def load_version(location: Location, like: Any, options: LoadOptions) -> Any:
    """Return the tree of a version; it needs those at the same place of which it is made.

    Raises:
        FileNotFoundError: one of them has been removed.
        ValueError: `mmap` is true.
        MismatchError: its name is no number.
        CorruptionError: one of them is damaged, or they do not follow one another.
        Exception: what `load_tree` raises.
    """
    if options.mmap:
        raise ValueError(f"mmap: {location} is a delta, which has no file to map; leave it out")
    if isinstance(location, LocalPath):
        location = LocalPath(real_path(location))  # "." and links have other neighbours
    versions = StoredVersions(open_step_listing(location.parent, storage_of(DEFAULT).RULES))
    number = step_in_name(location.name)
    if number is None:
        raise MismatchError(
            f"{location} is a delta: expected its number as its name, and the versions of which it "
            "is made beside it"
        )
    older: list[int] = []
    with suppress(UnsupportedFormatError):  # a web server, whose versions are opened one by one
        older = [step for step in versions.listing().steps if step < number]
    return load_newest(versions, [*older, number], like, options)[0]


def load_newest(
    versions: StoredVersions, steps: Sequence[int], like: Any, options: LoadOptions
) -> tuple[Any, HeldVersion]:
    """Return the last of some versions as a tree, and the tiles of it that were read.

    Raises as `load_version`.
    """
    with ExitStack() as stack:
        whole, deltas = open_chain(versions, steps, None, stack)
        assert whole is not None
        held = HeldVersion(whole)
        held.fetch_from(whole, deltas)
        tree = load_tree(held.reader(), like, options)
        held.stop_fetching()
    return tree, held
