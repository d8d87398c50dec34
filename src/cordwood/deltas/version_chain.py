"""The way to a version: the whole version and the deltas of which it is made."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from cordwood.deltas.held_version import HeldVersion
from cordwood.deltas.stored_versions import OpenVersion, StoredVersions
from cordwood.errors import CorruptionError
from cordwood.index import size_in_memory
from cordwood.loading.leaf_reader import LeafReader


class VersionChain(NamedTuple):
    """Open versions, from the oldest to the newest.

    Attributes:
        whole: the version to begin with; None: the one that is held.
        deltas: the deltas to apply to it, in their order.
    """

    whole: OpenVersion | None
    deltas: Sequence[OpenVersion]


def open_chain(
    versions: StoredVersions, steps: Sequence[int], held: HeldVersion | None, stack: ExitStack
) -> VersionChain:
    """Open a version and those of which it is made; the stack closes them.

    They go back to what is held; or to a whole one, if nothing is held or that is shorter.

    Args:
        versions: where they are.
        steps: the numbers of the versions up to the one to open, ascending.
        held: what is held.
        stack: closes what this opens.

    Raises:
        FileNotFoundError: a version has been removed.
        CorruptionError: the versions do not follow one another.
    """
    deltas: list[OpenVersion] = []
    delta_bytes = whole_bytes = 0
    whole: VersionChain | None = None  # from the newest whole version on
    after_held = [step for step in steps if held is None or step > held.step]
    opened_ahead = versions.open_ahead(after_held, stack)
    step, digest = steps[-1], None
    while True:
        try:
            opened = opened_ahead.get(step) or versions.open(step, stack)
        except FileNotFoundError as e:
            if step == steps[-1]:
                raise
            raise FileNotFoundError(
                errno.ENOENT,
                f"version {steps[-1]} is made from it, and it was removed. The next version that "
                f"its WeightPublisher writes holds the tree: wait_for({steps[-1] + 1})",
                str(versions.location_of(step)),
            ) from e
        if digest not in (None, opened.record.digest):
            raise CorruptionError(
                f"{opened.reader.path} is another version than the next one was made from"
            )
        base = opened.record.base
        if opened.record.is_whole and whole is None:
            whole = VersionChain(opened, tuple(deltas))
            whole_bytes = delta_bytes + _size(opened.reader)
        if whole is not None and (held is None or base is None):
            return whole
        if base is None or base.step is None or base.step >= step:
            raise CorruptionError(f"{opened.reader.path} is a delta of no earlier version")
        if opened.record.is_whole:
            opened = versions.open_delta_of(opened, stack)
        deltas.insert(0, opened)
        delta_bytes += _size(opened.reader)
        if held is not None and (base.step, base.digest) == (held.step, held.digest):
            return VersionChain(None, deltas)
        if whole is not None and delta_bytes >= whole_bytes:
            return whole
        step, digest = base.step, base.digest


def _size(reader: LeafReader) -> int:
    return sum(map(size_in_memory, reader.index.leaves))
