"""The refusal of a delta where a tree is needed, with what makes the tree."""

from __future__ import annotations

from cordwood.errors import CordwoodError, MismatchError
from cordwood.formats.version_record import VersionRecord, version_in
from cordwood.loading.leaf_reader import LeafReader
from cordwood.storage.locations import Location


class PublishedDeltaError(Exception):
    """A checkpoint is a delta that was published, whose tree is made by the versions before it."""

    def __init__(self, location: Location) -> None:
        super().__init__(str(location))
        self.location = location


def refuse_delta(reader: LeafReader, *, is_published_refused: bool = True) -> None:
    """Raise an error if the leaves of a checkpoint are not a tree, but the changes of one.

    Args:
        reader: the open checkpoint.
        is_published_refused: False: a published version is a PublishedDeltaError, to be caught.

    Raises:
        MismatchError: it is a delta; says how its tree is made.
        FormatError: its record of a version cannot be read, or is newer.
    """
    record = version_in(reader.index.metadata, reader.path)
    if record is None or record.is_whole:
        return
    step = None if record.base is None else record.base.step
    if step is not None and reader.location is not None and not is_published_refused:
        raise PublishedDeltaError(reader.location)
    of_version = "" if step is None else f" of version {step}"
    raise MismatchError(
        f"{reader.path} is a delta: expected a tree, found the changes{of_version}. "
        f"{_remedy(record, reader)}"
    )


def explain_delta(reader: LeafReader) -> str:
    """Return that a checkpoint is a delta, and how its tree is made; "" for another one."""
    try:
        record = version_in(reader.index.metadata, reader.path)
    except CordwoodError:  # a damaged record, or a newer one
        return ""
    if record is None or record.is_whole:
        return ""
    return f"this is a delta: it holds the changes of a tree. {_remedy(record, reader)}"


def _remedy(record: VersionRecord, reader: LeafReader) -> str:
    """Return what makes the tree of a delta."""
    if record.base is None or record.base.step is None or reader.location is None:
        return "cordwood.apply_delta (cordwood apply) makes the tree of it and its base"
    return (
        f"cordwood.load({reader.path!r}) returns the tree that they make; cordwood.save stores it "
        "whole"
    )
