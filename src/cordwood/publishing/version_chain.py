"""The way to a version: the whole version and the deltas of which it is made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from cordwood.errors import CorruptionError
from cordwood.index import size_in_memory
from cordwood.loading.leaf_reader import LeafReader
from cordwood.publishing.held_version import HeldVersion
from cordwood.publishing.stored_versions import OpenVersion, StoredVersions


class VersionChain(NamedTuple):
    """Open versions, from the oldest to the newest.

    Attributes:
        whole: the version to begin with; None: the one that is held.
        deltas: the deltas to apply to it, in their order.
    """

    whole: OpenVersion | None
    deltas: Sequence[OpenVersion]


def open_chain(
    versions: StoredVersions, newest: int, held: HeldVersion | None, stack: ExitStack
) -> VersionChain:
    """Open a version and those of which it is made; the stack closes them.

    They go back to what is held; or to a whole one, if nothing is held or that is shorter.

    Raises:
        FileNotFoundError: a version has been removed.
        CorruptionError: the versions do not follow one another.
    """
    deltas: list[OpenVersion] = []
    delta_bytes = whole_bytes = 0
    whole: VersionChain | None = None  # from the newest whole version on
    step, digest = newest, None
    while True:
        opened = _open(versions, step, digest, stack)
        base = opened.record.base
        if opened.record.is_whole and whole is None:
            whole = VersionChain(opened, tuple(deltas))
            whole_bytes = delta_bytes + _size(opened.reader)
        if whole is not None and (held is None or base is None):
            return whole
        if base is None or base.step is None or base.step >= step:
            raise CorruptionError(f"{opened.reader.path} is a delta of no earlier version")
        if opened.record.is_whole:
            opened = versions.open_delta_of(opened)
            stack.callback(opened.reader.opened.close)
        deltas.insert(0, opened)
        delta_bytes += _size(opened.reader)
        if held is not None and (base.step, base.digest) == (held.step, held.digest):
            return VersionChain(None, deltas)
        if whole is not None and delta_bytes >= whole_bytes:
            return whole
        step, digest = base.step, base.digest


def _open(versions: StoredVersions, step: int, digest: str | None, stack: ExitStack) -> OpenVersion:
    """Open a version. Raises CorruptionError unless it has the digest."""
    opened = versions.open(step)
    if opened is None:
        raise CorruptionError(
            f"{versions.location_of(step)} was not saved by a WeightPublisher: expected a "
            "location that holds versions only"
        )
    stack.callback(opened.reader.opened.close)
    if digest not in (None, opened.record.digest):
        raise CorruptionError(
            f"{opened.reader.path} is another version than the next one was made from"
        )
    return opened


def _size(reader: LeafReader) -> int:
    return sum(map(size_in_memory, reader.index.leaves))
