"""Refusals of a conversion to a place where something is, or whose name is that of a file."""

from __future__ import annotations

import errno
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from cordwood.errors import CordwoodError, IncompleteCheckpointError, UnsupportedFormatError
from cordwood.formats.detect_directory import written_format
from cordwood.formats.load_format import item_names, records_of, storage_of
from cordwood.formats.place import Place
from cordwood.formats.suffixes import suffixes_of
from cordwood.formats.table import DEFAULT, Format, file_formats
from cordwood.loading.detect_checkpoint import detect_checkpoint
from cordwood.storage.locations import LocalPath, Location, Url, require_local
from cordwood.storage.paths import is_empty_file, kind_at, locate_directory


def refuse_unknown_suffix(path: LocalPath) -> None:
    """Raise UnsupportedFormatError if a new directory would have the name of a file.

    `save` makes a directory of any name without a known file suffix. The path of a conversion is
    often typed by hand, and a suffix of letters is meant for a file.
    """
    text = path.text
    suffix = Path(text).suffix
    if text.endswith("/") or not suffix[1:].isalpha() or kind_at(path) != "nothing":
        return
    suffixes = ", ".join(suffixes_of(file_formats(writable=True)))
    raise UnsupportedFormatError(
        f"{text}: the suffix {suffix!r} is of no format that cordwood writes: expected {suffixes}, "
        f'or for a directory of that name a slash at the end or format="{DEFAULT.name}" '
        f"(--format {DEFAULT.name})"
    )


def refuse_existing(
    location: Location,
    format: Format,
    prefixes: Collection[str],
    *,
    beside: bool,
    overwrite: bool,
    has_to_prefix: bool = True,
) -> None:
    """Raise FileExistsError unless the trees of these prefixes may be written to a location.

    Args:
        location: the destination, which `refuse_foreign` has accepted.
        format: the format to write.
        prefixes: the prefixes of the trees to write; "" for a tree without one.
        beside: the caller has named the tree, so trees of other prefixes may stay beside it.
        overwrite: trees of these prefixes may be replaced.
        has_to_prefix: the call has `to_prefix=`, which an error may advise.
    """
    existing = _prefixes_at(location, format)
    if existing is None:
        return
    text = str(location)
    to_another = f"{'convert' if has_to_prefix else 'write'} to another path"
    if overwrite:
        others = sorted(set(existing) - set(prefixes))
        if others and not beside:
            written = "converted" if has_to_prefix else "written"
            what = f"it holds {_tree(others[0])}, which would stay beside what is {written}"
            name = "name the tree to write with to_prefix= (--to-prefix), " if has_to_prefix else ""
            raise FileExistsError(
                errno.EEXIST, f"{what}: remove the directory, {name}or {to_another}", text
            )
        return
    step = _step_at(location) if format.is_directory else None
    if beside and step is None and set(prefixes).isdisjoint(existing):
        return
    what = "a checkpoint"
    with suppress(CordwoodError, OSError):
        what = detect_checkpoint(location).description
    if step is not None:
        what += f", step {step} of a CheckpointManager"
    elif beside:
        what += f", with {_tree(next(iter(prefixes)))}"
    hint = ""
    if has_to_prefix and format.is_directory and not beside and step is None:
        hint = ", pass to_prefix= (--to-prefix) to write a tree beside it"
    raise FileExistsError(
        errno.EEXIST,
        f"the destination is already {what}: pass overwrite=True (--force) to replace it{hint}, or "
        f"{to_another}",
        text,
    )


def _tree(prefix: str) -> str:
    return f"the tree {prefix!r}" if prefix else "a tree without a prefix"


def _prefixes_at(location: Location, format: Format) -> list[str] | None:
    """Return the prefixes of the checkpoint there, [""] for a file; None if there is none."""
    if not format.is_directory:
        path = require_local(location)
        return None if kind_at(path) == "nothing" or is_empty_file(path) else [""]
    if isinstance(location, Url):
        try:
            return list(item_names(format, location))
        except (FileNotFoundError, IncompleteCheckpointError):
            return None
    place = LocalPath(locate_directory(location))
    existing = written_format(Place(place)) if kind_at(place) == "a folder" else None
    return None if existing is None else list(item_names(existing, place))


def _step_at(location: Location) -> int | None:
    """Return the step of the manager's record in the directory of packs at a location, or None."""
    with suppress(CordwoodError, OSError):
        storage = storage_of(DEFAULT)
        index = storage.require_index(storage.store_at(location))
        record = records_of(DEFAULT).read_record(index, name=str(location))
        return None if record is None else record.step
    return None
